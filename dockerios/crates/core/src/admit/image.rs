//! `MacOSImage`.

use dockerios_api::{IdentityPool, MacOSImage, MacOSMachineClass};
use dockerios_identity::Model;
use kube::ResourceExt;

use super::{
    Bench, Verdict,
    cpu::{Avx2, avx2},
    version,
};
use crate::seen::Seen;

/// What the rules look at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The image as it is to be.
    pub image: MacOSImage,
    /// All classes.
    pub classes: Seen<Vec<MacOSMachineClass>>,
    /// All identity pools.
    pub pools: Seen<Vec<IdentityPool>>,
}

/// Judges an image.
pub fn judge(facts: &Facts) -> Verdict {
    let mut bench = Bench::of(&facts.image);
    let spec = &facts.image.spec;
    if let Err(why) = spec.size.bytes() {
        bench.refuse("image-size", "spec.size", why.to_string(), "correct it");
    }
    let Some(major) = version::major(&spec.os_version) else {
        return bench.done();
    };
    if major > version::LAST_FOR_INTEL {
        bench.refuse(
            "image-for-intel",
            "spec.osVersion",
            format!(
                "there is no macOS {major} for Intel; macOS {} is the last",
                version::LAST_FOR_INTEL
            ),
            "correct the version, or use an older image",
        );
    }
    if spec
        .source
        .http
        .as_ref()
        .is_some_and(|http| http.url.starts_with("http://"))
    {
        bench.warn(
            "spec.source.http.url",
            "plain http; the checksum guards what arrives, not who sees it",
        );
    }
    let (Some(classes), Some(pools)) = (
        bench.advice(&facts.classes, "spec.osVersion", "the classes"),
        bench.advice(&facts.pools, "spec.osVersion", "the identity pools"),
    ) else {
        return bench.done();
    };
    let name = facts.image.name_any();
    for class in classes.iter().filter(|class| *class.spec.image_name == name) {
        against(&mut bench, facts, major, class, pools);
    }
    bench.done()
}

/// A class that was there before its image: what can no longer work with it is said, and the class says it too.
fn against(bench: &mut Bench, facts: &Facts, major: u8, class: &MacOSMachineClass, pools: &[IdentityPool]) {
    let (named, os) = (class.name_any(), &facts.image.spec.os_version);
    if major >= version::FIRST_WITH_AVX2 && matches!(avx2(&class.spec.cpu), Avx2::Lacks | Avx2::Disabled) {
        let advice = format!("class {named} names this image, and its CPU has no AVX2, which macOS {major} needs");
        bench.warn("spec.osVersion", advice);
    }
    if let (Ok(disk), Ok(golden)) = (class.spec.system_disk.size.bytes(), facts.image.spec.size.bytes())
        && disk < golden
    {
        bench.warn(
            "spec.size",
            format!("class {named} names this image, and its disk is smaller"),
        );
    }
    let wanted = class
        .spec
        .identity
        .per_machine
        .as_ref()
        .map(|own| own.pool_name.to_string());
    let pool = pools.iter().find(|pool| Some(pool.name_any()) == wanted);
    let model = pool.and_then(|pool| Model::find(&pool.spec.model).ok());
    if let Some(model) = model.filter(|model| !model.runs_macos(major)) {
        let advice = format!(
            "class {named} boots it as {}, whose last macOS is {}; this is {os}",
            model.name, model.newest_macos
        );
        bench.warn("spec.osVersion", advice);
    }
}
