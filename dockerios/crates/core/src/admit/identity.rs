//! `IdentityPool` and `MachineIdentity`.
//!
//! The uniqueness that is looked at here is a courtesy to the person who imports: of several creates at once more than
//! one can pass. The proof is the identity controller's, which gives none out before a list made after its creation.

use dockerios_api::{IdentityPool, MacOSImage, MacOSMachineClass, MachineIdentity, identity::pool::BootDiskTemplate};
use dockerios_identity::{Field, Identity, Model};
use kube::ResourceExt;

use super::{Bench, Verdict, names, version};
use crate::{render::bootdisk::fields, seen::Seen};

/// What the rules of a pool look at.
#[derive(Clone, Debug)]
pub struct PoolFacts {
    /// The pool as it is to be.
    pub pool: IdentityPool,
    /// All classes.
    pub classes: Seen<Vec<MacOSMachineClass>>,
    /// All images.
    pub images: Seen<Vec<MacOSImage>>,
}

/// What the rules of an identity look at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The identity that is to be made.
    pub identity: MachineIdentity,
    /// All identities, of every pool.
    pub others: Seen<Vec<MachineIdentity>>,
    /// The pool that it names.
    pub pool: Seen<IdentityPool>,
}

/// Judges a pool.
pub fn judge_pool(facts: &PoolFacts) -> Verdict {
    let mut bench = Bench::of(&facts.pool);
    let model = match Model::find(&facts.pool.spec.model) {
        Ok(model) => model,
        Err(why) => {
            let (problem, way_out) = halves(&why.to_string());
            bench.refuse("identity-model", "spec.model", problem, way_out);
            return bench.done();
        }
    };
    let (Some(classes), Some(images)) = (
        bench.advice(&facts.classes, "spec.model", "the classes"),
        bench.advice(&facts.images, "spec.model", "the images"),
    ) else {
        return bench.done();
    };
    let pool = facts.pool.name_any();
    for class in classes {
        let names_it = class
            .spec
            .identity
            .per_machine
            .as_ref()
            .is_some_and(|own| *own.pool_name == pool);
        let kind = facts.pool.spec.boot_disk.template;
        if names_it && class.spec.gpu.is_some() != (kind == BootDiskTemplate::GPU) {
            let (class, field) = (class.name_any(), kind.field());
            let way_out = "machines with a card and others need a pool each";
            bench.warn(
                "spec.bootDisk.template",
                format!("class {class} names this pool, and its machines do not fit {field}: {way_out}"),
            );
        }
        let image = images.iter().find(|image| image.name_any() == *class.spec.image_name);
        let Some(image) = image.filter(|_| names_it) else {
            continue;
        };
        if version::major(&image.spec.os_version).is_some_and(|major| !model.runs_macos(major)) {
            bench.warn(
                "spec.model",
                format!(
                    "class {} boots macOS {}, which {} does not run (its last is {}): no machine of it can be made",
                    class.name_any(),
                    image.spec.os_version,
                    model.name,
                    model.newest_macos
                ),
            );
        }
    }
    bench.done()
}

/// Judges a new identity.
pub fn judge(facts: &Facts) -> Verdict {
    let mut bench = Bench::of(&facts.identity);
    let spec = &facts.identity.spec;
    let fields = fields(&facts.identity);
    if let Err(refusals) = Identity::try_from(fields) {
        for refusal in refusals.0 {
            let (problem, way_out) = halves(&refusal.to_string());
            bench.refuse("identity-valid", path(refusal.field), problem, way_out);
        }
    }
    let pool_name = &spec.pool_name;
    let pool = bench.see(&facts.pool, "spec.poolName", &format!("IdentityPool {pool_name}"));
    let others = bench.see(&facts.others, "spec", "the other identities");
    if let Some(pool) = pool
        && pool.spec.model != spec.model
    {
        bench.refuse(
            "identity-of-pool",
            "spec.model",
            format!("pool {pool_name} is one of {}", pool.spec.model),
            format!("name a pool of {}", spec.model),
        );
    }
    if let Some(others) = others {
        unique(&mut bench, &facts.identity, others);
        if let Some(pool) = pool {
            room(&mut bench, pool, others);
        }
    }
    bench.done()
}

fn unique(bench: &mut Bench, identity: &MachineIdentity, others: &[MachineIdentity]) {
    type Value = fn(&MachineIdentity) -> &str;
    let values: [(Field, Value); 4] = [
        (Field::Mlb, |one| &one.spec.mlb),
        (Field::Rom, |one| &one.spec.rom),
        (Field::SystemUuid, |one| &one.spec.system_uuid),
        (Field::MacAddress, |one| &one.spec.mac_address),
    ];
    for (field, value) in values {
        let same = |other: &&MachineIdentity| {
            other.name_any() != identity.name_any() && value(other).eq_ignore_ascii_case(value(identity))
        };
        let taken: Vec<String> = others.iter().filter(same).map(ResourceExt::name_any).collect();
        if !taken.is_empty() {
            bench.refuse(
                "identity-unique",
                path(field),
                format!(
                    "{} is that of machineidentity {} already",
                    value(identity),
                    names(&taken, 4)
                ),
                "every value exists once in the fleet, whatever the pool: correct it, or delete the other one",
            );
        }
    }
}

fn room(bench: &mut Bench, pool: &IdentityPool, others: &[MachineIdentity]) {
    let name = pool.name_any();
    let count = others.iter().filter(|other| *other.spec.pool_name == name).count();
    if i32::try_from(count).unwrap_or(i32::MAX) >= pool.spec.max_size {
        bench.refuse(
            "identity-pool-full",
            "spec.poolName",
            format!(
                "pool {name} has {count} identities, quarantined ones included, and a maxSize of {}",
                pool.spec.max_size
            ),
            "raise spec.maxSize of the pool, or delete identities that are no longer wanted",
        );
    }
}

/// The problem and the way out of a text that has both.
fn halves(text: &str) -> (String, String) {
    match text.split_once("; ") {
        Some((problem, way_out)) => (problem.to_owned(), way_out.to_owned()),
        None => (text.to_owned(), "correct it".to_owned()),
    }
}

fn path(field: Field) -> &'static str {
    match field {
        Field::Model => "spec.model",
        Field::Serial => "spec.serial",
        Field::Mlb => "spec.mlb",
        Field::Rom => "spec.rom",
        Field::SystemUuid => "spec.systemUUID",
        Field::MacAddress => "spec.macAddress",
    }
}
