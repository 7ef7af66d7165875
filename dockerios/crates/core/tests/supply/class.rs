//! One pass over one class.

use std::sync::Arc;

use dockerios_core::{
    Seen,
    decide::class::{Facts, decide},
};
use serde_json::json;

use crate::build::*;

fn facts() -> Facts {
    let class = json!({"metadata": {"name": "build-8", "resourceVersion": "1", "generation": 1},
        "spec": {"imageName": "sequoia", "identity": {"type": "PerMachine", "perMachine": {"poolName": "imacpro"}},
            "cpu": {"cores": 8, "model": "Haswell-noTSX"}, "memory": {"size": "32Gi"},
            "systemDisk": {"bus": "nvme", "size": "200Gi", "storageClassName": "rbd"}}});
    let image = json!({"metadata": {"name": "sequoia"},
        "spec": {"osVersion": "15.6", "size": "200Gi", "storageClassName": "rbd",
            "source": {"pvc": {"namespace": "a", "name": "b"}}},
        "status": {"conditions": [condition("Ready", "True", "Published")]}});
    Facts {
        class: Arc::new(typed(class)),
        platform: Seen::Present(Arc::new(platform())),
        image: Seen::Present(Arc::new(typed(image))),
        pool: Seen::Present(Arc::new(pool("Recycle"))),
        storage: Seen::Present(Arc::new(typed(
            json!({"metadata": {"name": "rbd"}, "provisioner": "rbd.csi.ceph.com"}),
        ))),
    }
}

#[test]
fn a_class_is_ready_by_what_it_names() {
    type Change = fn(&mut Facts);
    let cases: [(&str, &str, Change); 7] = [
        ("True", "Ready", |_| {}),
        ("False", "ImageNotFound", |f| f.image = Seen::Absent),
        ("False", "PoolNotFound", |f| f.pool = Seen::Absent),
        ("False", "StorageClassNotFound", |f| f.storage = Seen::Absent),
        ("Unknown", "Unreadable", |f| {
            f.image = Seen::Unknown("the list failed".into())
        }),
        ("False", "ImageNotReady", |f| {
            let mut image = f.image.present().expect("an image").as_ref().clone();
            image.status = None;
            f.image = Seen::Present(Arc::new(image));
        }),
        ("False", "NotPossible", |f| {
            let mut bare = platform();
            bare.spec.domain_hook = None;
            f.platform = Seen::Present(Arc::new(bare));
        }),
    ];
    for (verdict, reason, change) in cases {
        let mut facts = facts();
        change(&mut facts);
        let plan = judged(decide(&facts, now()));
        let status = plan.status.expect("a status");
        assert_eq!(
            said(&status, "Ready"),
            (verdict.to_owned(), reason.to_owned()),
            "{status}"
        );
        assert!(plan.steps.is_empty());
    }
}
