//! What came of a look at the cluster.
//!
//! Invariant: only a look that succeeded can find that something is absent. One that failed tells nothing, and whoever
//! decides frees and deletes nothing for it.

/// What came of a look for a `T`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// The look failed, or was not made: why, in words for people.
    Unknown(String),
    /// The look succeeded, and there is no such thing.
    Absent,
    /// The look succeeded, and this is what is there.
    Present(T),
}

impl<T> Seen<T> {
    /// What is there; none also when the look failed, so for decisions only beside [`Seen::unreadable`].
    pub fn present(&self) -> Option<&T> {
        if let Self::Present(found) = self {
            Some(found)
        } else {
            None
        }
    }

    /// Whether a look that succeeded found nothing.
    pub fn absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Why the look failed, if it did.
    pub fn unreadable(&self) -> Option<&str> {
        if let Self::Unknown(why) = self { Some(why) } else { None }
    }

    /// As much of the same look as `part` takes of what was found.
    pub fn map<U>(self, part: impl FnOnce(T) -> U) -> Seen<U> {
        self.outcome().map(|found| found.map(part)).into()
    }

    /// The same look, borrowed.
    pub fn as_ref(&self) -> Seen<&T> {
        self.unreadable()
            .map_or(Ok(self.present()), |why| Err(why.to_owned()))
            .into()
    }

    fn outcome(self) -> Result<Option<T>, String> {
        match self {
            Self::Present(found) => Ok(Some(found)),
            Self::Absent => Ok(None),
            Self::Unknown(why) => Err(why),
        }
    }
}

impl<T> From<Result<Option<T>, String>> for Seen<T> {
    fn from(outcome: Result<Option<T>, String>) -> Self {
        outcome.map_or_else(Self::Unknown, Self::from)
    }
}

impl<T> From<Option<T>> for Seen<T> {
    /// Of a look that succeeded.
    fn from(found: Option<T>) -> Self {
        match found {
            Some(found) => Self::Present(found),
            None => Self::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_failed_is_neither_present_nor_absent_however_it_is_turned() {
        let failed = || Seen::<u8>::Unknown("timeout".to_owned());
        assert_eq!(failed().map(|n| n + 1), failed());
        assert_eq!(failed().as_ref().unreadable(), Some("timeout"));
        assert!(failed().present().is_none() && !failed().absent());
        for (seen, more) in [(Seen::Present(1), Seen::Present(2)), (Seen::Absent, Seen::Absent)] {
            assert_eq!(seen.as_ref().map(|n: &u8| n + 1), more);
            assert_eq!(seen.unreadable(), None);
        }
        assert_eq!(Seen::from(Some(1)), Seen::Present(1));
        assert_eq!(Seen::<u8>::from(None), Seen::Absent);
    }
}
