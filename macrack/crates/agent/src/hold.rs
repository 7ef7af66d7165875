//! Whether orders are carried out at all: pure.
//!
//! Invariant: an agent that was told to stop acting, or that nobody knows any more, leaves every VM as it is. What it
//! still sees through a watch from before is no order to it.

use macrack_api::MacNode;

use crate::gather::Seen;
use crate::identity::Nobody;

/// Why nothing is started, stopped or wiped, if that is so.
pub fn why(mac_node: &Seen<MacNode>, nobody: &Nobody) -> Option<String> {
    if let Some(retirement) = mac_node.present().and_then(|mac_node| mac_node.spec.retirement.as_ref()) {
        return Some(format!(
            "this Mac is retired ({}); its tokens are revoked. Once spec.retirement of its MacNode is gone, enrol it again",
            retirement.reason
        ));
    }
    nobody.as_ref().map(|_| "the API server takes no token of this Mac".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_retired_mac_and_one_that_nobody_knows_carry_out_no_order() {
        let mac_node = |spec| {
            let node = json!({ "metadata": { "name": "zz" }, "spec": spec });
            Seen::Present(Arc::new(serde_json::from_value(node).unwrap()))
        };
        let plain = mac_node(json!({ "serial": "ZZ", "nodeClassName": "c" }));
        let retirement = json!({ "reason": "HardwareFailure" });
        let retired = mac_node(json!({ "serial": "ZZ", "nodeClassName": "c", "retirement": retirement }));
        let nobody = Some("neither token".to_owned());
        assert_eq!(why(&plain, &None), None);
        assert_eq!(why(&Seen::Unknown("cut off".to_owned()), &None), None, "an outage holds nothing up");
        for (mac_node, nobody, says) in [
            (&retired, &None, "retired (HardwareFailure)"),
            (&retired, &nobody, "enrol it again"),
            (&plain, &nobody, "takes no token"),
            (&Seen::Absent, &nobody, "takes no token"),
        ] {
            let why = why(mac_node, nobody).unwrap();
            assert!(why.contains(says), "{why}");
        }
    }
}
