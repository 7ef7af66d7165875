//! Reads an answer by expanded names and says what stands in it.

use std::collections::BTreeSet;

use roxmltree::{Document, Node};

use crate::world::QEMU;

pub struct Judge<'a>(Document<'a>);

impl<'a> Judge<'a> {
    pub fn of(xml: &'a str) -> Self {
        Self(Document::parse(xml).unwrap_or_else(|error| panic!("{error} in:\n{xml}")))
    }

    fn in_qemu(&self, name: &str) -> Vec<Node<'_, 'a>> {
        self.0
            .descendants()
            .filter(|node| node.has_tag_name((QEMU, name)))
            .collect()
    }

    fn in_libvirt(&self, name: &str) -> impl Iterator<Item = Node<'_, 'a>> {
        let name = name.to_owned();
        self.0.descendants().filter(move |node| {
            node.is_element() && node.tag_name().namespace().is_none() && node.tag_name().name() == name
        })
    }

    /// QEMU's arguments, of all blocks.
    pub fn arguments(&self) -> Vec<String> {
        let blocks = self.in_qemu("commandline");
        assert!(blocks.len() <= 1, "{} blocks for QEMU's arguments", blocks.len());
        assert!(
            blocks.iter().all(|block| block.parent() == Some(self.0.root_element())),
            "the block is misplaced"
        );
        self.in_qemu("arg")
            .iter()
            .map(|node| node.attribute("value").unwrap().to_owned())
            .collect()
    }

    /// Values of the property elements of an alias's override, by name.
    pub fn overridden(&self, alias: &str) -> Vec<(String, Option<String>)> {
        let devices = self.in_qemu("device");
        let own = devices.iter().filter(|device| device.attribute("alias") == Some(alias));
        let properties = own.flat_map(|device| {
            device
                .descendants()
                .filter(|node| node.has_tag_name((QEMU, "property")))
        });
        let text = |node: &Node, name| node.attribute(name).map(str::to_owned);
        properties
            .map(|node| (text(&node, "name").unwrap(), text(&node, "value")))
            .collect()
    }

    pub fn disk(&self, alias: &str) -> Node<'_, 'a> {
        let is_it = |disk: &Node| disk.children().any(|child| child.attribute("name") == Some(alias));
        let found: Vec<_> = self.in_libvirt("disk").filter(is_it).collect();
        assert_eq!(found.len(), 1, "disks with alias {alias}");
        found[0]
    }

    /// Bus and name of a disk's target.
    pub fn target(&self, alias: &str) -> (String, String) {
        let target = part(self.disk(alias), "target");
        (
            target.attribute("bus").unwrap().to_owned(),
            target.attribute("dev").unwrap().to_owned(),
        )
    }

    pub fn attribute(&self, alias: &str, element: &str, name: &str) -> Option<String> {
        part(self.disk(alias), element).attribute(name).map(str::to_owned)
    }

    pub fn serial(&self, alias: &str) -> String {
        part(self.disk(alias), "serial").text().unwrap_or_default().to_owned()
    }

    pub fn has(&self, alias: &str, element: &str) -> bool {
        self.disk(alias)
            .children()
            .any(|child| child.tag_name().name() == element)
    }

    /// Index and slot of the NVMe controllers of bus 0.
    pub fn nvme_controllers(&self) -> Vec<(String, String)> {
        let controllers = self
            .in_libvirt("controller")
            .filter(|node| node.attribute("type") == Some("nvme"));
        let with_slot = controllers.map(|node| {
            let address = part(node, "address");
            assert_eq!(
                address.attribute("bus"),
                Some("0x00"),
                "the NVMe controller is not on bus 0"
            );
            (
                node.attribute("index").unwrap().to_owned(),
                address.attribute("slot").unwrap().to_owned(),
            )
        });
        with_slot.collect()
    }

    /// Serials of the NVMe controllers: libvirt demands one of each that is written out.
    pub fn controller_serials(&self) -> Vec<String> {
        let controllers = self
            .in_libvirt("controller")
            .filter(|node| node.attribute("type") == Some("nvme"));
        controllers
            .map(|node| part(node, "serial").text().unwrap_or_default().to_owned())
            .collect()
    }

    pub fn models(&self) -> Vec<String> {
        let interfaces = self.in_libvirt("interface").map(|node| part(node, "model"));
        interfaces
            .map(|model| model.attribute("type").unwrap().to_owned())
            .collect()
    }

    /// No two devices share a guest address, no two disks a name.
    pub fn nothing_is_there_twice(&self) {
        let mut addresses = BTreeSet::new();
        for address in self
            .in_libvirt("address")
            .filter(|node| node.attribute("type") == Some("pci"))
        {
            if address.parent().unwrap().has_tag_name("source") {
                continue;
            }
            let place = ["domain", "bus", "slot", "function"].map(|name| {
                let text = address.attribute(name).unwrap_or("0");
                match text.strip_prefix("0x") {
                    Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
                    None => text.parse().unwrap(),
                }
            });
            assert!(addresses.insert(place), "two devices at {place:x?}");
        }
        let mut names = BTreeSet::new();
        for disk in self.in_libvirt("disk") {
            let name = part(disk, "target").attribute("dev").unwrap();
            assert!(names.insert(name), "two disks are {name}");
        }
    }
}

fn part<'a, 'b>(parent: Node<'a, 'b>, name: &str) -> Node<'a, 'b> {
    let found: Vec<_> = parent.children().filter(|node| node.has_tag_name(name)).collect();
    assert_eq!(found.len(), 1, "<{name}> in <{}>", parent.tag_name().name());
    found[0]
}
