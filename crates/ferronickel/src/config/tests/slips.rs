//! Which names are slips, which are another's, and which are merely not read.

use super::super::slip::{Recognition, closest, recognise};
use super::*;

#[test]
fn slips_are_recognised() {
    let cases = [
        ("NCCL_P2P_DISABEL", "NCCL_P2P_DISABLE"),
        ("NCCL_P2P_DISBLE", "NCCL_P2P_DISABLE"),
        ("NCCL_P2PDISABLE", "NCCL_P2P_DISABLE"),
        ("NCCL_P_2_P_DISABLE", "NCCL_P2P_DISABLE"),
        ("nccl_p2p_disable", "NCCL_P2P_DISABLE"),
        ("Nccl_Debug", "NCCL_DEBUG"),
        ("NCCLDEBUG", "NCCL_DEBUG"),
        ("NCCL__DEBUG", "NCCL_DEBUG"),
        ("NCLC_DEBUG", "NCCL_DEBUG"),
        ("NCL_DEBUG", "NCCL_DEBUG"),
        ("NCCL_DEBGU", "NCCL_DEBUG"),
        ("NCCL_ALGOS", "NCCL_ALGO"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_HCAA", "NCCL_IB_HCA"),
        ("FERRONICKEL_ANOUNCE", "FERRONICKEL_ANNOUNCE"),
        ("FERONICKEL_ANNOUNCE", "FERRONICKEL_ANNOUNCE"),
    ];
    for (name, meant) in cases {
        assert_eq!(recognise(name), Recognition::Slip(meant), "{name}");
    }
}

#[test]
fn names_of_others_are_left_alone() {
    let foreign = [
        "PATH",
        "HOME",
        "RCCL_DEBUG",
        "MSCCL_ALGO",
        "HCCL_DEBUG",
        "OFI_NCCL_PROTOCOL",
        "NV_LIBNCCL_PACKAGE",
        "TORCH_NCCL_BLOCKING_WAIT",
        "NCCL_ROOT",
        "NCCL_VERSION",
        "NCCL_HOME",
        "NCCL_TESTS_DEVICE",
        "NCCL_TESTS_SPLIT",
        "NET",
        "",
        "_",
    ];
    for name in foreign {
        assert_eq!(recognise(name), Recognition::Foreign, "{name}");
    }
}

#[test]
fn what_nccl_knows_is_no_slip() {
    for name in known::NCCL_VARIABLES {
        let expected = if variables::by_name(name).is_some() { Recognition::Read } else { Recognition::Unread };
        assert_eq!(recognise(name), expected, "{name}");
    }
    // Of another time: no name is like it, and it may be some plugin's.
    assert_eq!(recognise("NCCL_TREE_THRESHOLD"), Recognition::Unread);
    assert_eq!(recognise("FERRONICKEL_COLOUR"), Recognition::Unknown);
}

#[test]
fn the_lists_are_sorted() {
    assert!(known::NCCL_VARIABLES.is_sorted());
    assert!(known::BUILD_VARIABLES.is_sorted());
}

#[test]
fn slips_are_told_and_what_is_not_read_is_noted() {
    let files = Files::new("NCCL_SHM_DISABEL=1\nNCCL_NET_PLUGIN=none\nCUDA_VISIBLE_DEVICES=0\n", "");
    let environment = [
        ("NCCL_P2P_DISABEL", "1"),
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_IB_HCAA", "x"),
        ("FERRONICKEL_COLOUR", "1"),
        ("PATH", "/bin"),
    ];
    let read = files.read(&environment);
    let system = files.system();
    insta::assert_snapshot!(read.warnings().join("\n").replace(system.to_str().unwrap(), "FILE"), @r"
    NCCL_P2P_DISABEL is not a variable ferronickel or NCCL knows; did you mean NCCL_P2P_DISABLE?
    NCCL_IB_HCAA is not a variable ferronickel or NCCL knows; did you mean NCCL_IB_HCA (NCCL knows it; ferronickel does not read it)?
    FERRONICKEL_COLOUR (set in the environment) is not a variable ferronickel knows.
    NCCL_SHM_DISABEL (set in FILE) is not a variable ferronickel or NCCL knows; did you mean NCCL_SHM_DISABLE?
    ");
    insta::assert_snapshot!(read.notes().join("\n").replace(system.to_str().unwrap(), "FILE"), @r"
    NCCL_IB_HCA is set but ferronickel does not read it
    NCCL_NET_PLUGIN is set in FILE but ferronickel does not read it
    CUDA_VISIBLE_DEVICES is set in FILE but ferronickel does not read it
    ");
    assert!(!read.flag(&variables::P2P_DISABLE).value, "a slip is told, never guessed");
}

#[test]
fn a_hostile_name_costs_nothing() {
    let long = format!("NCCL_{}", "A".repeat(1 << 20));
    assert_eq!(closest(&long), None);
    assert_eq!(recognise(&long), Recognition::Unread);
}

proptest! {
    #[test]
    fn two_letters_swapped_are_a_slip(index in 0..VARIABLES.len(), position in any::<prop::sample::Index>()) {
        let name = VARIABLES[index].name;
        let mut letters = name.as_bytes().to_vec();
        let start = name.find('_').unwrap() + 1;
        let at = start + position.index(letters.len() - start - 1);
        letters.swap(at, at + 1);
        let swapped = String::from_utf8(letters).unwrap();
        prop_assume!(swapped != name && !known::is_known(&swapped));
        prop_assert_eq!(recognise(&swapped), Recognition::Slip(name));
    }

    #[test]
    fn any_name_is_something(name in any::<String>()) {
        let _ = recognise(&name);
    }
}
