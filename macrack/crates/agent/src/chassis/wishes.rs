//! The loop's part in the goldens: what is asked of the puller, and what it answers.
//!
//! Invariant: what cannot be read asks for nothing, and is not taken for asking for nothing ([`Wishes::known`]).

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use macrack_api::Span;
use macrack_api::rack::node::{Order, Slot};

use super::{Chassis, Gathered};
use crate::bell::replace;
use crate::gather::Seen;
use crate::images::{Situation, Source, Standing, Want, Wishes};
use crate::life::Life;
use crate::orders::GoldenState;
use crate::recipe::{self, Recipe};
use crate::slots::SlotLink;

impl Chassis {
    /// Tells the puller what is asked for and what must be kept.
    pub(super) fn wish(&self, gathered: &Gathered) {
        let config = self.catalogue.config().image_cache;
        let recipes = gathered.to_be_made();
        let recipes: Vec<&Recipe> = recipes.into_iter().map(|(_, recipe)| recipe).collect();
        let instances = recipes.iter().map(|r| Want { source: r.source(), for_instance: true });
        let ahead = self.prefetch().into_iter().map(|source| Want { source, for_instance: false });
        let coming = recipes.iter().fold(0_u64, |sum, recipe| sum.saturating_add(recipe.disk_bytes));
        let evict_after = config.evict_after.parse().ok().map(|span: Span| Duration::from_secs(span.seconds()));
        let wishes = Wishes {
            known: self.knows_wishes(gathered),
            wants: instances.chain(ahead).collect(),
            cloned: gathered.vms.values().filter_map(|facts| facts.golden.clone()).collect(),
            reserve: gathered.promised().saturating_add(coming),
            // what is no number or no duration evicts nothing
            max_goldens: usize::try_from(config.max_goldens).unwrap_or(usize::MAX),
            evict_after: evict_after.and_then(|after| after.try_into().ok()).unwrap_or(SignedDuration::MAX),
        };
        replace(&self.wishes, wishes);
    }

    /// Whether it is known what is asked for: a MacNode, an instance or a catalogue that cannot be read asks for nothing
    /// that could be named here, and may ask for all that is in the cache.
    fn knows_wishes(&self, gathered: &Gathered) -> bool {
        let read = !matches!(*self.mac_node.borrow(), Seen::Unknown(_));
        let unread = |slot: &Slot| {
            let unmade =
                matches!(gathered.vms.get(&slot.uid).map(|facts| &facts.life), None | Some(Life::Partial { .. }));
            let instance = self.links.get(&slot.uid).map(SlotLink::instance);
            slot.order == Order::Run && unmade && !matches!(instance, Some(Seen::Present(_) | Seen::Absent))
        };
        read && self.held.is_none() && self.catalogue.is_known() && !gathered.slots.iter().any(unread)
    }

    fn prefetch(&self) -> Vec<Source> {
        let seen = self.mac_node.borrow();
        let status = seen.present().and_then(|mac_node| mac_node.status.as_ref());
        let leased = status.filter(|status| status.lease_ref.is_some() && self.held.is_none());
        let Some(status) = leased else { return Vec::new() };
        let source = |name: &String| {
            let image = self.catalogue.image(name)?;
            // an instance of it is refused with the reason; until then it would only take up room
            image.spec.runs_on(&self.facts.host_version).ok()?;
            recipe::source(&image).ok()
        };
        status.prefetch_image_names.iter().filter_map(source).collect()
    }
}

/// How what is asked for stands, by hex.
pub(super) fn golden_states(situation: &Situation) -> BTreeMap<String, GoldenState> {
    let standings = situation.standings.iter().map(|(hex, standing)| {
        let state = match standing {
            Standing::Pulling(account) => GoldenState::Pulling(account.to_string()),
            Standing::Refused(why) => GoldenState::Refused(why.clone()),
        };
        (hex.clone(), state)
    });
    let cached = situation.goldens.keys().map(|hex| (hex.clone(), GoldenState::Cached));
    standings.chain(cached).collect()
}
