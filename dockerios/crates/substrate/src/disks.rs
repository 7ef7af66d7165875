//! What the machine boots from. Invariant: the bootdisk is made by the builder's own binary; the system disk is made by
//! others' tools (sgdisk, mkfs.fat, mtools), so that no fault of ours can hide in both. A UEFI shell stands in for
//! OpenCore: it runs the script beside it, and the script says on the console which disk it stands on.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use dockerios_identity::{Fields, Generator};

use crate::{
    Outcome, Trouble, hook, root,
    session::{INSIDE, Session},
};

/// The stand-in, as Debian's efi-shell-x64 installs it.
const SHELL: &str = "usr/share/efi-shell-x64/shellx64.efi";

/// What the stand-in in the place of OpenCore's first file says, once it has shown the configuration, connected and listed
/// all disks, as OpenCore does with ConnectDrivers, and run the stand-in in the place of OpenCore itself.
pub const ON_BOOTDISK: &str = "the bootdisk was booted";
/// What the stand-in in the place of OpenCore itself says.
pub const OPENCORE: &str = "OpenCore.efi was started";
/// What the stand-in on the system disk says.
pub const ON_SYSTEM_DISK: &str = "the system disk was booted";

/// An empty file of that many MiB.
pub fn blank(session: &Session, name: &str, mib: u64) -> Outcome {
    let file = fs::File::create(session.path(name)).map_err(Trouble::during(name))?;
    file.set_len(mib << 20).map_err(Trouble::during(name))
}

/// Builds the bootdisk of a minted identity as `bootdisk.img`, and gives the identity.
pub fn bootdisk(session: &Session) -> Outcome<Fields> {
    let shell = fs::read(root::find()?.join(SHELL)).map_err(Trouble::during(SHELL))?;
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bootdisk/tests/template/config.plist");
    let config = fs::read(&config).map_err(Trouble::during(config.display()))?;
    let script = [
        "@echo -off",
        "for %i in fs0 fs1 fs2 fs3",
        "  if exist %i:\\EFI\\OC\\config.plist then",
        "    %i:",
        "    type \\EFI\\OC\\config.plist",
        "    connect -r",
        "    map -r",
        &format!("    \\EFI\\OC\\OpenCore.efi -nostartup -nomap -noversion -exit echo {OPENCORE}"),
        "  endif",
        "endfor",
        &format!("echo {ON_BOOTDISK}"),
        "",
    ];
    let template = session.path("template");
    for (name, content) in [
        ("EFI/BOOT/BOOTx64.efi", &shell),
        ("EFI/BOOT/startup.nsh", &script.join("\r\n").into_bytes()),
        ("EFI/OC/OpenCore.efi", &shell),
        ("EFI/OC/config.plist", &config),
    ] {
        let path = template.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&template))
            .and_then(|()| fs::write(&path, content))
            .map_err(Trouble::during(name))?;
    }
    let builder = hook::binary("bootdisk", "dockerios-bootdisk")?;
    let manifest = done(Command::new(&builder).args(["manifest", "--template"]).arg(&template))?;
    fs::write(template.join("MANIFEST.sha256"), manifest).map_err(Trouble::during("the manifest"))?;
    let sum = done(Command::new("sha256sum").arg(template.join("MANIFEST.sha256")))?;
    let sum = sum.split(' ').next().unwrap_or_default();

    let identity = Generator::seeded([7; 32]).mint("iMacPro1,1");
    let identity = Fields::from(identity.map_err(Trouble::during("an identity"))?);
    let json = serde_json::to_string(&identity).map_err(Trouble::during("the identity's file"))?;
    session.write("identity.json", json)?;
    done(
        Command::new(&builder)
            .arg("build")
            .arg("--template")
            .arg(&template)
            .args(["--template-sha256", sum, "--identity"])
            .arg(session.path("identity.json"))
            .arg("--output")
            .arg(session.path("bootdisk.img")),
    )?;
    Ok(identity)
}

/// Makes the system disk as `system.img`, with an EFI system partition that firmware would boot, given the chance.
pub fn bootable_system_disk(session: &mut Session) -> Outcome {
    let shell = fs::read(root::find()?.join(SHELL)).map_err(Trouble::during(SHELL))?;
    session.write("other.efi", shell)?;
    session.write("other.nsh", format!("@echo -off\r\necho {ON_SYSTEM_DISK}\r\n"))?;
    blank(session, "system.img", 64)?;
    session.demand(&format!(
        "cd {INSIDE} && sgdisk --new=1:2048:+48M --typecode=1:ef00 system.img && \
         mkfs.fat -F 32 --offset 2048 system.img 49152 && \
         mmd -i system.img@@1M ::EFI ::EFI/BOOT && \
         mcopy -i system.img@@1M other.efi ::EFI/BOOT/BOOTX64.EFI && \
         mcopy -i system.img@@1M other.nsh ::EFI/BOOT/startup.nsh"
    ))?;
    Ok(())
}

fn done(command: &mut Command) -> Outcome<String> {
    let Output { status, stdout, stderr } = command.output().map_err(Trouble::during(format_args!("{command:?}")))?;
    if !status.success() {
        return Err(Trouble::new(String::from_utf8_lossy(&stderr)));
    }
    String::from_utf8(stdout).map_err(Trouble::during(format_args!("{command:?}")))
}
