//! The kinds that only describe: MacNodeClass, InstanceClass, RackConfig. The schema accepted them; that is said.

use k8s_openapi::jiff::Timestamp;
use macrack_api::{Condition, rack::node_class::MacNodeClassReason};
use serde_json::{Value, json};

use crate::{conditions::Conditions, plan::Plan};

/// The status of a kind that only describes, with what else it says.
pub fn decide(old: &[Condition], generation: Option<i64>, now: Timestamp, also: Value) -> Plan {
    let mut conditions = Conditions::over(old, generation, now);
    conditions.set("Ready", true, MacNodeClassReason::Accepted, "");
    let mut status = json!({ "observedGeneration": generation, "conditions": conditions.done() });
    if let (Value::Object(status), Value::Object(also)) = (&mut status, also) {
        status.extend(also);
    }
    Plan { status: Some(status), ..Plan::default() }
}
