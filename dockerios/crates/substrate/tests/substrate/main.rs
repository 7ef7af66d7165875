//! The hook's domains and the bootdisk before the judges that count: libvirt's schema, its QEMU command line, QEMU,
//! OVMF. The machine is one that KubeVirt would make of a class with `bus: nvme`, its bootdisk a clone.

mod boot;
mod examples;

mod judge;
mod passes;
mod started;
mod world;
