//! What was observed. Absent is not unreadable: nothing is ever freed because a read failed.

/// One observed thing.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen<T> {
    /// It is there.
    Present(T),
    /// It is certainly not there.
    Absent,
    /// It could not be read, with the reason for people. Nothing is decided from it.
    Unknown(String),
}

impl<T> Seen<T> {
    /// The thing, if it was seen.
    pub fn present(&self) -> Option<&T> {
        match self {
            Self::Present(thing) => Some(thing),
            Self::Absent | Self::Unknown(_) => None,
        }
    }

    /// Whether it is certainly not there.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Whether it could not be read.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    /// A view of the thing.
    pub fn as_ref(&self) -> Seen<&T> {
        match self {
            Self::Present(thing) => Seen::Present(thing),
            Self::Absent => Seen::Absent,
            Self::Unknown(why) => Seen::Unknown(why.clone()),
        }
    }

    /// The same knowledge of something derived from it.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Seen<U> {
        match self {
            Self::Present(thing) => Seen::Present(f(thing)),
            Self::Absent => Seen::Absent,
            Self::Unknown(why) => Seen::Unknown(why),
        }
    }
}

impl<T> From<Option<T>> for Seen<T> {
    fn from(thing: Option<T>) -> Self {
        thing.map_or(Self::Absent, Self::Present)
    }
}
