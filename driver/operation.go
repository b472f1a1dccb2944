package driver

import "slices"

// Operation identifies a collective operation.
type Operation uint8

// The collective operations. Their values are the numbers in symmem.h. Insert a new operation
// before AllReduceRMSNorm, and add its row to operationTraits. Counts are in elements, as in
// NCCL. For AllGather and ReduceScatter, a count covers the part of one rank, and for AllToAll
// the part of one peer.
const (
	AllReduce Operation = iota
	AllGather
	ReduceScatter
	Broadcast
	Reduce
	AllToAll
	Send
	Recv
	Barrier
	// AllToAllV generalizes AllToAll: each pair of ranks has its own count; see Splits.
	AllToAllV
	// AllGatherV generalizes AllGather: each rank has its own count. Call.Splits has the same
	// receive counts on every rank.
	AllGatherV
	// ReduceScatterV generalizes ReduceScatter: each rank has its own count. Call.Splits has the
	// same send counts on every rank.
	ReduceScatterV
	// Gather is like AllGather, but only the root gets the result, so other ranks need no receive
	// buffer.
	Gather
	// Scatter sends a part of the root's buffer to each rank, so other ranks need no send buffer.
	Scatter
	// AllReduceRMSNorm combines an AllReduce, a residual addition and a norm in one call; see Norm.
	// In symmem.h, it has a separate function and no number.
	AllReduceRMSNorm
	// Operations counts the operations.
	Operations = iota
)

// Extent describes how the number of elements in a buffer is derived from the call.
type Extent uint8

// The extents of buffers.
const (
	// NoPart means that the operation has no such buffer.
	NoPart Extent = iota
	// OnePart means Call.Count elements.
	OnePart
	// AllParts means Call.Count elements for each rank.
	AllParts
	// AllPartsOfRoot means Call.Count elements for each rank on the root, and no elements on other
	// ranks.
	AllPartsOfRoot
	// BySplits means the counts in Call.Splits.
	BySplits
)

// traits describes an operation to backends, bindings and commands.
type traits struct {
	name string
	// send and recv are the extents of the buffers.
	send, recv Extent
	// reduces is set if the operation uses Call.ReduceOp. rooted is set if Call.Root is the root of
	// the operation, and pair is set if Call.Root is the peer of a message.
	reduces, rooted, pair bool
	// windows reports whether the call registers its buffers and uses their windows.
	windows bool
	// together reports whether no rank can complete the operation before all ranks have started it.
	together bool
	// note describes restrictions on the use of the operation's number in symmem.h.
	note  string
	paths []Path
}

var operationTraits = [Operations]traits{
	AllReduce: {
		name: "AllReduce", send: OnePart, recv: OnePart, reduces: true, windows: true, together: true,
		paths: everyPath,
	},
	AllGather: {
		name: "AllGather", send: OnePart, recv: AllParts, windows: true, together: true, paths: everyPath,
	},
	ReduceScatter: {
		name: "ReduceScatter", send: AllParts, recv: OnePart, reduces: true, windows: true,
		together: true, paths: anyPath,
	},
	Broadcast: {
		name: "Broadcast", send: OnePart, recv: OnePart, rooted: true, windows: true, paths: anyPath,
	},
	Reduce: {
		name: "Reduce", send: OnePart, recv: OnePart, reduces: true, rooted: true, windows: true,
		paths: anyPath,
	},
	AllToAll: {
		name: "AllToAll", send: AllParts, recv: AllParts, windows: true, together: true, paths: anyPath,
	},
	Send:    {name: "Send", send: OnePart, pair: true, paths: []Path{PathPlain}},
	Recv:    {name: "Recv", recv: OnePart, pair: true, paths: []Path{PathPlain}},
	Barrier: {name: "Barrier", together: true, paths: []Path{PathPlain, PathDirect}},
	AllToAllV: {
		name: "AllToAllV", send: BySplits, recv: BySplits, paths: []Path{PathPlain},
		note: "for symmem_explain; symmem_all_to_all_v makes the call",
	},
	AllGatherV: {
		name: "AllGatherV", send: OnePart, recv: BySplits, together: true,
		paths: []Path{PathPlain, PathDirect},
		note:  "for symmem_explain; symmem_all_gather_v makes the call",
	},
	ReduceScatterV: {
		name: "ReduceScatterV", send: BySplits, recv: OnePart, reduces: true, together: true,
		paths: []Path{PathPlain, PathDirect},
		note:  "for symmem_explain; symmem_reduce_scatter_v makes the call",
	},
	Gather: {
		name: "Gather", send: OnePart, recv: AllPartsOfRoot, rooted: true, paths: []Path{PathPlain},
	},
	Scatter: {
		name: "Scatter", send: AllPartsOfRoot, recv: OnePart, rooted: true, paths: []Path{PathPlain},
	},
	AllReduceRMSNorm: {
		name: "AllReduceRMSNorm", send: OnePart, recv: OnePart, reduces: true, windows: true,
		together: true, paths: anyPath,
	},
}

var (
	anyPath   = []Path{PathPlain, PathWindow, PathDirect}
	everyPath = []Path{PathPlain, PathWindow, PathDirect, PathTwoLevel}
)

var noTraits = traits{name: "Operation(?)"}

func (o Operation) traits() *traits {
	if o < Operations {
		return &operationTraits[o]
	}
	return &noTraits
}

// String returns the operation's name.
func (o Operation) String() string { return o.traits().name }

// PointToPoint reports whether the operation involves only two ranks.
func (o Operation) PointToPoint() bool { return o.traits().pair }

// Reduces reports whether the operation combines elements with Call.ReduceOp.
func (o Operation) Reduces() bool { return o.traits().reduces }

// Rooted reports whether one rank of the operation is its root.
func (o Operation) Rooted() bool { return o.traits().rooted }

// UsesWindows reports whether a call registers its buffers and uses their windows.
func (o Operation) UsesWindows() bool { return o.traits().windows }

// Tuned reports whether tuning tables contain rules that choose the operation's path by size. They
// contain none for AllReduceRMSNorm, which follows the rules of AllReduce.
func (o Operation) Tuned() bool {
	return o.traits().windows && len(o.traits().paths) > 1 && o.Numbered()
}

// Together reports whether no rank can complete the operation before all ranks have started it.
func (o Operation) Together() bool { return o.traits().together }

// Numbered reports whether symmem.h and Python have a number for the operation.
func (o Operation) Numbered() bool { return o < AllReduceRMSNorm }

// Note describes restrictions on the use of the operation's number in symmem.h, or returns "".
func (o Operation) Note() string { return o.traits().note }

// HasSplits reports whether a call of the operation needs Splits.
func (o Operation) HasSplits() bool {
	send, recv := o.Extents()
	return send == BySplits || recv == BySplits
}

// Uneven reports whether Splits divides only one of the buffers, as in AllGatherV and
// ReduceScatterV. The counts are then the same on every rank. In an AllToAllV, in contrast,
// Splits divides both buffers, and each pair of ranks has its own counts.
func (o Operation) Uneven() bool {
	send, recv := o.Extents()
	return (send == BySplits) != (recv == BySplits)
}

// Extents returns the extents of a call's two buffers.
func (o Operation) Extents() (send, recv Extent) { return o.traits().send, o.traits().recv }

// HasInPlace reports whether NCCL permits the operation in place: both buffers may be the same, or
// the smaller buffer may be the rank's own part of the larger one.
func (o Operation) HasInPlace() bool {
	send, recv := o.Extents()
	return send == OnePart && recv != NoPart || recv == OnePart && send != NoPart
}

// Parts returns the number of parts, each of Call.Count elements, in a buffer of a group of the
// given number of ranks. For AllPartsOfRoot, it returns the number on the root, and for BySplits
// it returns 0.
func (e Extent) Parts(ranks int) int64 {
	switch e {
	case OnePart:
		return 1
	case AllParts, AllPartsOfRoot:
		return int64(ranks)
	case NoPart, BySplits:
	}
	return 0
}

// Takes reports whether the operation supports a path at all. Offer.Refusal decides whether a
// particular call can use the path.
func (o Operation) Takes(path Path) bool { return slices.Contains(o.traits().paths, path) }

// Path selects how a collective runs.
type Path uint8

// The paths.
const (
	// PathPlain works on any memory, because it copies through shared staging buffers.
	PathPlain Path = iota
	// PathWindow works on registered memory, which peers read and write directly.
	PathWindow
	// PathDirect runs symmem's own kernels over peers' memory. Only GPUs support it.
	PathDirect
	// PathTwoLevel runs symmem's kernels within each machine and uses a library such as NCCL between
	// machines. Only GPUs support it.
	PathTwoLevel
	// Paths counts the paths.
	Paths
)

// String returns the path's name.
func (p Path) String() string {
	return [...]string{"plain", "window", "direct", "two-level", "?"}[min(p, Paths)]
}
