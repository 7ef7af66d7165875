//! Which facts each kind's rules want, and which rules they are. Invariant: a kind that is not known here is refused,
//! not waved through: it would have been registered by mistake.

use dockerios_core::{
    Seen,
    admit::{self, Refusal, Verdict},
};
use kube::core::{DynamicObject, admission::AdmissionRequest};
use serde::de::DeserializeOwned;

use crate::facts::Eyes;

type Request = AdmissionRequest<DynamicObject>;

/// The verdict on a request. An update that leaves the spec as it is meets no refusal: an object that was admitted once
/// keeps its labels and loses its finalizers also when the rules, or what it refers to, have changed meanwhile.
/// Nothing is read for it either: what cannot be seen holds nothing up that nobody judges.
pub(crate) async fn judge(eyes: &Eyes, request: &Request) -> Verdict {
    if leaves_the_spec(request) {
        return Verdict::default();
    }
    judged(eyes, request).await.unwrap_or_else(|refusal| Verdict {
        refusals: vec![refusal],
        warnings: Vec::new(),
    })
}

fn leaves_the_spec(request: &Request) -> bool {
    let spec = |object: &Option<DynamicObject>| object.as_ref().and_then(|object| object.data.get("spec").cloned());
    let before = spec(&request.old_object);
    before.is_some() && before == spec(&request.object)
}

async fn judged(eyes: &Eyes, request: &Request) -> Result<Verdict, Refusal> {
    Ok(match request.resource.resource.as_str() {
        "platformconfigs" => {
            let platform = new(request)?;
            admit::platform::judge(&admit::platform::Facts {
                platform,
                classes: eyes.classes().await,
            })
        }
        "macosimages" => {
            let image = new(request)?;
            let (classes, pools) = tokio::join!(eyes.classes(), eyes.pools());
            admit::image::judge(&admit::image::Facts { image, classes, pools })
        }
        "identitypools" => {
            let pool = new(request)?;
            let (classes, images) = tokio::join!(eyes.classes(), eyes.images());
            admit::identity::judge_pool(&admit::identity::PoolFacts { pool, classes, images })
        }
        "machineidentities" => {
            let identity: dockerios_api::MachineIdentity = new(request)?;
            let (others, pool) = tokio::join!(eyes.identities(), eyes.pool(Some(&identity.spec.pool_name)));
            admit::identity::judge(&admit::identity::Facts { identity, others, pool })
        }
        "macosmachineclasses" => class(eyes, new(request)?).await,
        "macosmachines" => {
            let machine: dockerios_api::MacOSMachine = new(request)?;
            let asked = asked(eyes, request, Some(&machine.spec.machine_class_name)).await;
            admit::machine::judge(&machine, &asked)
        }
        "macosmachinepools" => {
            let pool: dockerios_api::MacOSMachinePool = new(request)?;
            let asked = asked(eyes, request, Some(&pool.spec.machine_class_name)).await;
            admit::machine::judge_pool(&pool, &asked)
        }
        "macosmachineclaims" => {
            let claim: dockerios_api::MacOSMachineClaim = new(request)?;
            // one that this version does not read does not excuse the new one from its rules
            let old: Option<dockerios_api::MacOSMachineClaim> =
                request.old_object.as_ref().and_then(|old| read(old).ok());
            let class = claim.spec.machine_class_name.as_deref();
            let timed = claim.spec.ttl.is_some() || old_ttl(old.as_ref());
            let platform = async { if timed { eyes.platform().await } else { Seen::Absent } };
            let (asked, platform) = tokio::join!(asked(eyes, request, class), platform);
            admit::machine::judge_claim(&admit::machine::ClaimFacts {
                claim,
                old,
                asked,
                platform,
            })
        }
        other => {
            return Err(refusal(
                request,
                "registered",
                format!("{other} is no kind of this webhook"),
                "remove it from the ValidatingWebhookConfiguration",
            ));
        }
    })
}

async fn class(eyes: &Eyes, class: dockerios_api::MacOSMachineClass) -> Verdict {
    let spec = &class.spec;
    let pool = spec.identity.per_machine.as_ref().map(|own| &*own.pool_name);
    let (platform, image, pool, storage) = tokio::join!(
        eyes.platform(),
        eyes.image(&spec.image_name),
        eyes.pool(pool),
        eyes.storage(&spec.system_disk.storage_class_name),
    );
    admit::class::judge(&admit::class::Facts {
        class,
        platform,
        image,
        pool,
        storage,
    })
}

fn old_ttl(old: Option<&dockerios_api::MacOSMachineClaim>) -> bool {
    old.is_some_and(|old| old.spec.ttl.is_some())
}

async fn asked(eyes: &Eyes, request: &Request, class: Option<&str>) -> admit::machine::Asked {
    if class.is_none() {
        return admit::machine::Asked {
            class: Seen::Absent,
            namespace: Seen::Absent,
        };
    }
    let (class, namespace) = tokio::join!(eyes.class(class), eyes.namespace(request.namespace.as_deref()));
    admit::machine::Asked { class, namespace }
}

/// The object of the request.
fn new<K: DeserializeOwned>(request: &Request) -> Result<K, Refusal> {
    let object = request.object.as_ref().ok_or_else(|| {
        let operation = format!("{:?}", request.operation);
        refusal(
            request,
            "registered",
            format!("{operation} brings no object"),
            "register CREATE and UPDATE only",
        )
    })?;
    read(object).map_err(|why| {
        let problem = format!("this version of the operator does not read it: {why}");
        refusal(
            request,
            "readable",
            problem,
            "bring operator and CRDs to the same version",
        )
    })
}

/// The schema let it in, so it differs only where the schema is of another version than we are.
fn read<K: DeserializeOwned>(object: &DynamicObject) -> Result<K, serde_json::Error> {
    serde_json::to_value(object).and_then(serde_json::from_value)
}

fn refusal(request: &Request, rule: &'static str, problem: String, way_out: &str) -> Refusal {
    let kind = request.kind.kind.to_lowercase();
    let object = match &request.namespace {
        Some(namespace) => format!("{kind} {namespace}/{}", request.name),
        None => format!("{kind} {}", request.name),
    };
    Refusal {
        rule,
        object,
        field: "spec",
        problem,
        way_out: way_out.to_owned(),
    }
}
