//! Where a rank stands among the others: in trees, and on its node.

/// A rank's place in a tree: the ranks above and below it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct TreePlace {
    pub parent: Option<usize>,
    pub children: [Option<usize>; 2],
}

/// A rank's place in every shape that does not depend on the call.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The two trees of an all-reduce.
    pub trees: [TreePlace; 2],
    /// Its node, if there are several.
    pub node: Option<NodePlace>,
}

/// A rank's place on its node, and its node's among the nodes.
#[derive(Clone, Debug)]
pub(crate) struct NodePlace {
    /// The ranks of the node, in rank order.
    pub local: Box<[u32]>,
    /// The rank's place among them.
    pub index: usize,
    /// Owners on each node: as many as the smallest node has ranks.
    pub owners: usize,
    pub nodes: usize,
    /// The node's place among the nodes.
    pub position: usize,
    /// For an owner: the owners of the same share on the previous node and on the next.
    pub neighbours: Option<(usize, usize)>,
    /// For an owner: its places in the trees of the owners of its share.
    pub trees: [TreePlace; 2],
}

impl Shape {
    /// The place of `rank`, where `nodes` has the node of every rank, numbered from zero.
    pub fn of(nodes: &[usize], rank: usize) -> Shape {
        Shape { trees: double_binary_tree(nodes.len(), rank), node: NodePlace::of(nodes, rank) }
    }
}

impl NodePlace {
    /// The place of `rank`; None if there is only one node.
    fn of(nodes: &[usize], rank: usize) -> Option<NodePlace> {
        let count = nodes.iter().max().map_or(0, |&last| last + 1);
        if count < 2 {
            return None;
        }
        let on = |node: usize| (0..nodes.len()).filter(move |&rank| nodes[rank] == node);
        let owners = (0..count).map(|node| on(node).count()).min().unwrap_or(0);
        let position = nodes[rank];
        let local: Vec<_> = on(position).collect();
        let index = local.iter().position(|&mate| mate == rank).expect("it is on its own node");
        let owner_on = |node: usize| on(node).nth(index).expect("every node has so many ranks");
        let is_owner = index < owners;
        let neighbours = is_owner.then(|| (owner_on((position + count - 1) % count), owner_on((position + 1) % count)));
        let trees = match is_owner {
            true => double_binary_tree(count, position).map(|place| place.map(owner_on)),
            false => Default::default(),
        };
        let local = local.into_iter().map(|rank| rank as u32).collect();
        Some(NodePlace { local, index, owners, nodes: count, position, neighbours, trees })
    }
}

impl TreePlace {
    pub fn map(self, f: impl Fn(usize) -> usize) -> TreePlace {
        TreePlace { parent: self.parent.map(&f), children: self.children.map(|child| child.map(&f)) }
    }
}

/// The place of `rank` in two trees over `ranks` ranks, in which every rank has at most one child in one of the trees
/// or none in the other, so that both together use every rank's links alike.
///
/// The first is the tree in which a rank's height is the number of times that its number can be halved, rank 0 on
/// top: with an odd number a rank is a leaf. The second is the first with the ranks in reverse order if they are even,
/// and moved by one if they are odd, which makes leaves of the others. (Sanders, Speck, Träff: Two-tree algorithms
/// for full bandwidth broadcast, reduction and scan, 2009.)
pub(crate) fn double_binary_tree(ranks: usize, rank: usize) -> [TreePlace; 2] {
    let first = in_order_tree(ranks, rank);
    let second = if ranks.is_multiple_of(2) {
        in_order_tree(ranks, ranks - 1 - rank).map(|other| ranks - 1 - other)
    } else {
        in_order_tree(ranks, (rank + ranks - 1) % ranks).map(|other| (other + 1) % ranks)
    };
    [first, second]
}

/// The place of `rank` in the tree in which children lie half as far away as their parent does from its own.
fn in_order_tree(ranks: usize, rank: usize) -> TreePlace {
    // the distance of its children's siblings: its lowest bit; of the root's only child: the largest there is
    let reach = if rank == 0 { ranks.next_power_of_two() } else { rank & rank.wrapping_neg() };
    let parent = (rank != 0).then(|| {
        let above = (rank ^ reach) | (reach << 1);
        if above < ranks { above } else { rank ^ reach }
    });
    // the first of ever nearer places on the upper side that exists
    let upper = || {
        let mut step = reach >> 1;
        while step > 0 && rank + step >= ranks {
            step >>= 1;
        }
        (step > 0).then(|| rank + step)
    };
    let lower = (rank != 0 && reach > 1).then(|| rank - (reach >> 1));
    let [a, b] = [lower, upper()];
    TreePlace { parent, children: if a.is_some() { [a, b] } else { [b, None] } }
}

/// The place of `rank` in a binary tree over `ranks` ranks with `root` on top.
pub(crate) fn rooted_tree(ranks: usize, rank: usize, root: usize) -> TreePlace {
    let place = (rank + ranks - root) % ranks;
    let rank_at = |place: usize| (place + root) % ranks;
    let child = |k: usize| (k < ranks).then(|| rank_at(k));
    TreePlace {
        parent: (place > 0).then(|| rank_at((place - 1) / 2)),
        children: [child(2 * place + 1), child(2 * place + 2)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Children and parents agree, everyone is reached from one root, and the depth is logarithmic.
    fn check_tree(ranks: usize, place: impl Fn(usize) -> TreePlace) {
        let places: Vec<_> = (0..ranks).map(&place).collect();
        let roots: Vec<_> = (0..ranks).filter(|&rank| places[rank].parent.is_none()).collect();
        assert_eq!(roots.len(), 1, "{ranks} ranks: {places:?}");
        for (rank, place) in places.iter().enumerate() {
            assert!(place.children[0].is_some() || place.children[1].is_none());
            for child in place.children.into_iter().flatten() {
                assert_eq!(places[child].parent, Some(rank), "{ranks} ranks, child {child} of {rank}");
            }
            if let Some(parent) = place.parent {
                assert!(places[parent].children.contains(&Some(rank)), "{ranks} ranks, {rank} below {parent}");
            }
            let depth = std::iter::successors(Some(rank), |&at| places[at].parent).take(100).count();
            assert!(depth <= ranks.ilog2() as usize + 3, "{ranks} ranks: rank {rank} is {depth} deep");
        }
    }

    #[test]
    fn trees_reach_everyone() {
        for ranks in (1..70).chain([127, 128, 129, 256]) {
            for tree in 0..2 {
                check_tree(ranks, |rank| double_binary_tree(ranks, rank)[tree]);
            }
            for root in [0, ranks / 2, ranks - 1] {
                check_tree(ranks, |rank| rooted_tree(ranks, rank, root));
                assert_eq!(rooted_tree(ranks, root, root).parent, None);
            }
        }
    }

    #[test]
    fn who_is_inside_one_tree_is_a_leaf_of_the_other() {
        for ranks in 2..70 {
            for rank in 0..ranks {
                let places = double_binary_tree(ranks, rank);
                let both = places.iter().filter(|place| place.children[1].is_some()).count();
                assert!(both <= 1, "rank {rank} of {ranks}: {places:?}");
            }
        }
    }

    #[test]
    fn uneven_nodes_have_as_many_owners_as_the_smallest_has_ranks() {
        // 3 + 1 + 2, ranks not in the order of nodes
        let nodes = [0, 1, 0, 2, 2, 0];
        let place = |rank| NodePlace::of(&nodes, rank).unwrap();
        assert_eq!(*place(2).local, [0, 2, 5]);
        assert_eq!((place(2).index, place(2).owners, place(2).nodes), (1, 1, 3));
        assert_eq!(place(0).neighbours, Some((3, 1)));
        assert_eq!(place(3).neighbours, Some((1, 0)));
        assert_eq!(place(4).neighbours, None);
        check_tree(3, |node| {
            let owner = [0, 1, 3][node];
            place(owner).trees[0].map(|rank| [0, 1, 3].iter().position(|&other| other == rank).unwrap())
        });
        assert!(NodePlace::of(&[0, 0], 1).is_none());
    }
}
