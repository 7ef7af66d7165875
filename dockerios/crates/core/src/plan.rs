//! A plan is data: it can be printed, compared in a test, and is judged by [`crate::check`] before anything is done.

use dockerios_api::condition::clip;
use jiff::Timestamp;
use kube::core::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use crate::kind::{Id, Kind};

/// What one pass over one object decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Done in order. The first that fails ends them; the next pass starts from facts again.
    pub steps: Vec<Step>,
    /// The operator's whole part of the object's status (the value under `status`), applied last, also after a step
    /// failed, and only if it differs from what is there. `None` leaves it as it is.
    pub status: Option<Value>,
    /// Events about the object, told once their pass was carried out.
    pub news: Vec<News>,
    /// Look again at that moment though nothing changed.
    pub wake: Option<Timestamp>,
}

impl Plan {
    /// Look again at `moment`, or earlier if something else asks for it.
    pub fn wake_at(&mut self, moment: Timestamp) {
        self.wake = Some(self.wake.map_or(moment, |earlier| earlier.min(moment)));
    }

    /// Adds a step.
    pub fn then(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Sets the status.
    pub fn report(&mut self, status: &impl Serialize) {
        // a type of ours that is no JSON would be a defect; the pass then leaves the status as it is
        self.status = serde_json::to_value(status).ok();
    }

    /// Nothing is to be done.
    pub fn idle(&self) -> bool {
        self.steps.is_empty() && self.status.is_none() && self.news.is_empty()
    }
}

/// An object to be written, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// The manifest: `metadata`, `spec` and so on. `apiVersion` and `kind` are filled in from [`Object::kind`].
    pub body: Value,
}

impl Object {
    /// From a typed object.
    ///
    /// # Errors
    /// It is no JSON: a defect of its type.
    pub fn of(kind: Kind, object: &impl Serialize) -> Result<Self, serde_json::Error> {
        let mut body = serde_json::to_value(object)?;
        let address = kind.address();
        body["apiVersion"] = address.api_version().into();
        body["kind"] = address.kind.into();
        Ok(Self { kind, body })
    }

    /// Its name as far as it has one (`generateName` objects have none yet).
    pub fn id(&self) -> Id {
        let text = |field: &str| self.body["metadata"][field].as_str().unwrap_or_default().to_owned();
        Id::new(self.kind, text("namespace"), text("name"))
    }

    /// A field of its metadata.
    pub fn meta(&self, field: &str) -> Option<&str> {
        self.body["metadata"][field].as_str()
    }

    /// A label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.body["metadata"]["labels"][key].as_str()
    }
}

/// One very object: never one that was made again under its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Which.
    pub id: Id,
    /// Its uid, always demanded.
    pub uid: String,
    /// Demanded too when set: the object has not changed since it was decided on.
    pub resource_version: Option<String>,
}

impl Target {
    /// The object with that metadata, in whatever version.
    pub fn of(kind: Kind, meta: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let id = Id::new(kind, text(&meta.namespace), text(&meta.name));
        Self {
            id,
            uid: text(&meta.uid),
            resource_version: None,
        }
    }

    /// In that very version.
    pub fn exactly(kind: Kind, meta: &ObjectMeta) -> Self {
        Self {
            resource_version: meta.resource_version.clone(),
            ..Self::of(kind, meta)
        }
    }
}

/// A proof that is made immediately before a write, by consistent lists (never from a cache). A list that fails proves
/// nothing, and the write is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// No VirtualMachine, VMI or launcher pod in the cluster carries the identity by its label. Whether one has its
    /// firmware UUID alone is a fact of the decision ([`crate::decide::identity::Carrier`]).
    IdentityUnused {
        /// Name of the MachineIdentity.
        identity: String,
        /// Its system UUID.
        uuid: String,
    },
    /// No other MachineIdentity has one of its values.
    IdentityUnique {
        /// Name of the MachineIdentity.
        identity: String,
    },
    /// The machine that an object is labelled for is gone: none of that name has that uid.
    MachineGone {
        /// The machine's namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// No object of the machine is left: no VirtualMachine, VMI, launcher pod; unless retained, no DataVolume or PVC.
    NothingLeftOf {
        /// The machine's namespace.
        namespace: String,
        /// The machine's uid.
        uid: String,
        /// Volumes stay by design.
        retained: bool,
    },
}

impl Guard {
    /// The object that the proof is about.
    pub fn id(&self) -> Id {
        match self {
            Self::IdentityUnused { identity, .. } | Self::IdentityUnique { identity } => {
                Id::new(Kind::MachineIdentity, "", identity)
            }
            Self::MachineGone { namespace, name, .. } => Id::new(Kind::MacOSMachine, namespace, name),
            Self::NothingLeftOf { namespace, uid, .. } => Id::new(Kind::MacOSMachine, namespace, uid),
        }
    }
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Makes a proof; what follows is done only if it holds.
    Prove(Guard),
    /// POST; never applied onto an existing object. If one has the name already: done when it carries the same
    /// `machine.dockerios.io/uid` label (or, for objects without that label, has the same controller owner or the very
    /// same labels), refused with NameTaken otherwise.
    Create(Object),
    /// PUT of the main resource at `metadata.resourceVersion`, which must be set: a conflict means decide again.
    Replace(Object),
    /// PUT of `/status` at `metadata.resourceVersion`, which must be set; after the proof, if one is demanded.
    ReplaceStatus(Object, Option<Guard>),
    /// Merge patch of the main resource, with the target's uid (and resourceVersion) as preconditions.
    Merge(Target, Value),
    /// Adds a finalizer to an object that is not being deleted, at the resourceVersion seen.
    AddFinalizer(Target, &'static str),
    /// Removes our finalizer and no other, at the resourceVersion seen; after the proof, if one is demanded.
    RemoveFinalizer(Target, &'static str, Option<Guard>),
    /// DELETE in the background, with uid (and resourceVersion) as preconditions. Gone already is done.
    Delete(Target),
    /// DELETE of a collection: all objects of the kind in the namespace that have the label. Needs no `get`.
    DeleteLabelled {
        /// Secret or ConfigMap.
        kind: Kind,
        /// Where.
        namespace: String,
        /// Label and value.
        label: (&'static str, String),
    },
    /// PUT `…/virtualmachineinstances/NAME/evacuate/cancel`: the node is in use again.
    CancelEvacuation {
        /// The VMI.
        vmi: Target,
        /// The node that it was to leave.
        node: String,
    },
    /// Takes the guest's last screen (KubeVirt's screenshot subresource) into an immutable ConfigMap of that name in
    /// the machine's namespace, with the machine's labels. Best effort: evidence, never a reason to hold resources.
    KeepScreen {
        /// The machine.
        machine: Target,
        /// The VMI.
        vmi: Target,
        /// Name of the ConfigMap.
        name: String,
    },
    /// Makes the machine's hook ConfigMap: labels and name from the object, `binaryData.osk` filled in by the operator
    /// from the platform's Secret at the moment of writing. The key is in no plan.
    CreateHookConfig(Object),
    /// Makes the machine's config Secret: `stringData` as given, plus `token`, `ca.crt` and `server-name`, which are in
    /// no plan.
    CreateGuestConfig(Object),
}

impl Step {
    /// The object that the step writes to.
    pub fn id(&self) -> Id {
        match self {
            Self::Create(object)
            | Self::Replace(object)
            | Self::ReplaceStatus(object, _)
            | Self::CreateHookConfig(object)
            | Self::CreateGuestConfig(object) => object.id(),
            Self::Prove(guard) => guard.id(),
            Self::Merge(target, _)
            | Self::AddFinalizer(target, _)
            | Self::RemoveFinalizer(target, ..)
            | Self::Delete(target) => target.id.clone(),
            Self::DeleteLabelled { kind, namespace, .. } => Id::new(*kind, namespace, ""),
            Self::CancelEvacuation { vmi, .. } => vmi.id.clone(),
            Self::KeepScreen { machine, name, .. } => Id::new(Kind::ConfigMap, &machine.id.namespace, name),
        }
    }
}

/// An event about the object of the pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Something that a person should look at.
    pub warning: bool,
    /// One documented word.
    pub reason: String,
    /// A sentence with the way out.
    pub note: String,
}

impl News {
    /// An ordinary transition.
    pub fn normal(reason: impl ToString, note: impl AsRef<str>) -> Self {
        Self {
            warning: false,
            reason: reason.to_string(),
            note: clip(note.as_ref()),
        }
    }

    /// Something to look at.
    pub fn warning(reason: impl ToString, note: impl AsRef<str>) -> Self {
        Self {
            warning: true,
            ..Self::normal(reason, note)
        }
    }
}

/// The last refusal that the API server gave to a step about this object, told to the next pass so that it can say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The object that was to be written.
    pub of: Id,
    /// Why it was refused.
    pub cause: RefusalCause,
    /// The API server's own words.
    pub message: String,
}

/// Why a step was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// An object that is not ours has the name.
    NameTaken,
    /// Quota, admission, schema or rights: waits for a person.
    Forbidden,
    /// A [`Guard`] found the opposite.
    Unproven,
}
