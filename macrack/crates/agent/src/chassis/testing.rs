//! The loop's part in the self test of the kernel's counter: gathers, and does what [`selftest`] decides.

use std::collections::BTreeMap;

use jiff::Timestamp;
use macrack_wire::layout::read_json;

use super::{Chassis, Gathered, lives};
use crate::images::Manifest;
use crate::images::room::NewDisk;
use crate::life::Life;
use crate::selftest;
use crate::vms::{Making, Shape, Vm};

impl Chassis {
    /// Tests the kernel's counter where nothing else does; when to look again.
    pub(super) async fn self_test(&mut self, gathered: &Gathered) -> Option<Timestamp> {
        let wanted = self.held.is_none() && {
            let seen = self.mac_node.borrow();
            let status = seen.present().and_then(|mac_node| mac_node.status.as_ref());
            status.is_some_and(|status| selftest::wanted(status, &self.around.boot_id, &self.quota))
        };
        let own = self.vms.get(selftest::UID).map(Vm::facts).filter(|facts| !facts.gone);
        if !wanted && own.is_none() {
            self.untested = None;
            return None;
        }
        let golden = if wanted { self.smallest_golden(gathered) } else { None };
        // what was decided in this pass is under way
        let now = self.vms.iter().map(|(uid, vm)| (uid.clone(), vm.facts())).collect();
        let (lives, crowded_out) =
            (lives(&now), self.no_room(gathered, own.as_ref().map(|f| &f.life), golden.as_ref()));
        let gates = self.gates(&lives, &crowded_out, gathered.going_down);
        let life = own.as_ref().map(|facts| (&facts.life, facts.since));
        let step = selftest::decide(wanted, life, golden.is_some(), &gates);
        let waits = match &step {
            selftest::Step::Shut(why, _) => Some(why.clone()),
            _ => None,
        };
        if waits != self.untested {
            if let Some(why) = &waits {
                tracing::warn!("the VM counter of this boot is not tested yet: {why}");
            }
            self.untested = waits;
        }
        match step {
            selftest::Step::Wait(until) | selftest::Step::Shut(_, until) => until,
            selftest::Step::Act(action) => {
                self.act(&action, gathered).await;
                None
            }
            selftest::Step::Make => {
                if let Some((hex, manifest)) = golden
                    && let Err(error) = self.make_self_test(hex, &manifest)
                {
                    tracing::error!(%error, "the VM counter of this boot cannot be tested");
                }
                None
            }
        }
    }

    /// The smallest is enough, and any shows the same.
    fn smallest_golden(&self, gathered: &Gathered) -> Option<(String, Manifest)> {
        let goldens = gathered.situation.goldens.iter();
        let hex = goldens.min_by_key(|(_, golden)| golden.bytes).map(|(hex, _)| hex.clone())?;
        match read_json(&self.cache.dir(&hex).join("manifest.json")) {
            Ok(manifest) => Some((hex, manifest)),
            Err(error) => {
                tracing::error!(%error, golden = hex, "the VM counter of this boot cannot be tested: its golden is not read");
                None
            }
        }
    }

    /// Why there is no room for the disk of a self test that is to be made.
    fn no_room(
        &self,
        gathered: &Gathered,
        life: Option<&Life>,
        golden: Option<&(String, Manifest)>,
    ) -> BTreeMap<String, String> {
        let unmade = matches!(life, None | Some(Life::Partial { .. }));
        let Some((_, manifest)) = golden.filter(|_| unmade) else { return BTreeMap::new() };
        gathered.without_room(&[NewDisk { uid: selftest::UID.to_owned(), size: manifest.disk_bytes }])
    }

    fn make_self_test(&mut self, hex: String, manifest: &Manifest) -> std::io::Result<()> {
        tracing::info!(golden = hex, "tests the VM counter of this boot: nothing else is to run here");
        let shape = Shape {
            uid: selftest::UID.to_owned(),
            namespace: "none".to_owned(),
            name: "self-test".to_owned(),
            cpu_cores: selftest::CPU_CORES,
            memory_bytes: selftest::MEMORY_BYTES,
            display: None,
            first_boot: false,
        };
        let making = Making {
            description: shape.described(self.host.machine_identifier()?, self.fresh_address()?),
            disk_bytes: manifest.disk_bytes,
            golden_dir: self.cache.dir(&hex),
            golden: hex,
            script: None,
        };
        self.make_of(selftest::UID, making);
        Ok(())
    }
}
