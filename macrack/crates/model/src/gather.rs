//! What the operator reads for a pass: from caches that may be behind, and from the API server itself where being
//! wrong would free something. The same choices as `macrack-operator`'s `gather`.

use crate::{
    decision::{About, Facts, Of, Read},
    world::{Api, Hour, Instance, Lease, Mac, OWNER},
};

/// Caches, the API server, and the clocks.
#[derive(Debug)]
pub struct View<'a> {
    /// What the caches hold.
    pub cached: &'a Api,
    /// What the API server would answer now.
    pub now: &'a Api,
    /// The operator's clock.
    pub operator: Hour,
    /// The API server's.
    pub server: Hour,
}

fn get<T: Clone>(all: &[Option<T>], n: u8) -> Option<T> {
    all.get(usize::from(n)).cloned().flatten()
}

fn numbered<T>(all: &[Option<T>]) -> impl Iterator<Item = (u8, &T)> {
    (0u8..).zip(all).filter_map(|(n, thing)| Some((n, thing.as_ref()?)))
}

impl View<'_> {
    /// The facts of a pass over that object; none when the cache has no such object.
    pub fn facts(&self, of: Of) -> Option<Facts> {
        let about = match of {
            Of::Mac(n) => self.mac(n),
            Of::Lease(tenant) => self.lease(tenant),
            Of::Instance(name) => self.instance(name),
        }?;
        Some(Facts { operator: self.operator, server: self.server, about })
    }

    fn mac(&self, n: u8) -> Option<About> {
        let mac = get(&self.cached.macs, n)?;
        let lease = mac.lease.and_then(|r| {
            let cached = get(&self.cached.leases, r.tenant).filter(|l| l.uid == r.lease);
            cached.or_else(|| get(&self.now.leases, r.tenant))
        });
        let holder = |name: Option<u8>, uid| {
            let name = name?;
            let cached = get(&self.cached.instances, name).filter(|i| i.uid == uid);
            cached.or_else(|| get(&self.now.instances, name)).map(|i| (name, i))
        };
        let holders = mac.slots.iter().map(|s| (s.uid, holder(s.name, s.uid).into())).collect();
        let of_lease = |i: &Instance| mac.lease.is_some_and(|r| i.lease == Some(r.lease));
        let instances = numbered(&self.cached.instances).filter(|(_, i)| of_lease(i));
        Some(About::Mac {
            lease: lease.into(),
            ending: mac.lease.is_some_and(|r| self.cached.ending.get(usize::from(r.tenant)) == Some(&true)),
            instances: instances.map(|(name, i)| (name, i.clone())).collect(),
            holders,
            claimants: if mac.lease.is_none() { self.told(n, true) } else { Vec::new() },
            n,
            mac,
        })
    }

    /// The leases whose status names this chassis; `unheld`: those alone that no chassis knows of.
    fn told(&self, n: u8, unheld: bool) -> Vec<Lease> {
        let named = numbered(&self.cached.leases).filter(|(_, l)| l.told.is_some_and(|t| t.mac == n));
        named.filter(|(_, l)| !unheld || self.holding(l.uid).is_none()).map(|(_, l)| l.clone()).collect()
    }

    fn holding(&self, lease: u8) -> Option<(u8, Mac)> {
        holding(self.cached, lease)
    }

    fn lease(&self, tenant: u8) -> Option<About> {
        let lease = get(&self.cached.leases, tenant)?;
        let cached = self.holding(lease.uid);
        let fresh = lease.deleted.is_some() || lease.end.is_some();
        let holder: Read<(u8, Mac)> = cached.or_else(|| fresh.then(|| holding(self.now, lease.uid)).flatten()).into();
        let candidates = match holder {
            Read::Absent => {
                numbered(&self.cached.macs).map(|(n, m)| (n, m.clone(), self.others(n, lease.uid))).collect()
            }
            _ => Vec::new(),
        };
        let rank = |l: &Lease| (l.made, l.tenant);
        let waits = |l: &Lease| {
            l.finalizer && l.deleted.is_none() && l.told.is_none() && l.end.is_none() && self.holding(l.uid).is_none()
        };
        let ahead = numbered(&self.cached.leases).filter(|(_, l)| rank(l) < rank(&lease) && waits(l)).count();
        Some(About::Lease {
            named: lease.told.and_then(|t| Some((t.mac, get(&self.cached.macs, t.mac)?))),
            holder,
            candidates,
            ahead: u8::try_from(ahead).unwrap_or(u8::MAX),
            lease,
        })
    }

    fn others(&self, n: u8, lease: u8) -> Vec<Lease> {
        self.told(n, false).into_iter().filter(|l| l.uid != lease).collect()
    }

    fn instance(&self, name: u8) -> Option<About> {
        let instance = get(&self.cached.instances, name)?;
        let slotted = |api: &Api| {
            let has = |m: &Mac| m.slots.iter().any(|s| s.uid == instance.uid);
            numbered(&api.macs).find(|(_, m)| has(m)).map(|(n, m)| (n, m.clone()))
        };
        let found = slotted(self.cached).or_else(|| self.holding(instance.lease?));
        let fresh = instance.deleted.is_some();
        let chassis = found.or_else(|| fresh.then(|| slotted(self.now)).flatten());
        let neighbours = chassis.iter().flat_map(|(_, m)| &m.slots).filter(|s| s.uid != instance.uid);
        let neighbours = neighbours.filter_map(|s| {
            let name = s.name?;
            Some((name, get(&self.cached.instances, name).filter(|i| i.uid == s.uid)?))
        });
        let tenant = OWNER[usize::from(name)];
        Some(About::Instance {
            neighbours: neighbours.collect(),
            lease: get(&self.cached.leases, tenant),
            ending: self.cached.ending.get(usize::from(tenant)) == Some(&true),
            chassis: chassis.into(),
            name,
            instance,
        })
    }
}

fn holding(api: &Api, lease: u8) -> Option<(u8, Mac)> {
    let holds = |m: &Mac| m.lease.is_some_and(|r| r.lease == lease);
    numbered(&api.macs).find(|(_, m)| holds(m)).map(|(n, m)| (n, m.clone()))
}
