package driver

import "slices"

// Operation identifies a collective operation, or a Send or Recv.
//
// For example, in an AllGather on 4 ranks, the send buffer of each rank has one part, and the
// receive buffer has 4 parts, one from each rank. A table, operationTraits, describes each
// operation in this way, and lists its paths: the ways in which it can run.
type Operation uint8

// The operations. Those before AllReduceRMSNorm have the same numbers in symmem.h. Insert a new
// operation before AllReduceRMSNorm, and add a row to operationTraits.
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
	// AllToAllV, AllGatherV and ReduceScatterV have parts of different sizes; see Splits.
	AllToAllV
	AllGatherV
	ReduceScatterV
	// Gather and Scatter use the larger buffer only on the root.
	Gather
	Scatter
	// AllReduceRMSNorm normalizes the sums of an AllReduce; see Norm. In symmem.h, this operation
	// and the following ones have functions instead of numbers.
	AllReduceRMSNorm
	// ReduceScatterRMSNorm normalizes each rank's part of a ReduceScatter.
	ReduceScatterRMSNorm
	// Dispatch and Combine exchange rows of a mixture of experts; see Route.
	Dispatch
	Combine
	Operations = iota // number of operations
)

// Extent describes the parts of a buffer.
type Extent uint8

// The extents of buffers. Except for BySplits, a part has Call.Count elements.
const (
	NoPart Extent = iota // the operation does not use the buffer
	OnePart
	AllParts       // one part for each rank
	AllPartsOfRoot // AllParts on the root, NoPart elsewhere
	BySplits       // one part for each rank, of the sizes in Call.Splits
)

// Parts returns the number of parts in a buffer of a rank that uses it. For BySplits, it returns 0,
// because the parts have different sizes.
func (e Extent) Parts(ranks int) int64 {
	switch e {
	case OnePart:
		return 1
	case AllParts, AllPartsOfRoot:
		return int64(ranks)
	default: // NoPart, BySplits
		return 0
	}
}

// isDivided reports whether some rank's buffer has a part for each rank.
func (e Extent) isDivided() bool { return e == AllParts || e == AllPartsOfRoot || e == BySplits }

// Path selects how an operation runs.
type Path uint8

// The paths.
const (
	// PathPlain copies through shared staging buffers, so it works on any memory.
	PathPlain Path = iota
	// PathWindow lets peers access memory in windows: memory that all ranks have registered.
	PathWindow
	// PathDirect runs symmem's GPU kernels, which access the memory of peers.
	PathDirect
	// PathTwoLevel runs symmem's GPU kernels within each machine, and NCCL between machines.
	PathTwoLevel
	Paths // number of paths
)

var (
	oneMachinePaths = []Path{PathPlain, PathWindow, PathDirect}
	allPaths        = []Path{PathPlain, PathWindow, PathDirect, PathTwoLevel}
)

var pathNames = [Paths]string{"plain", "window", "direct", "two-level"}

// String returns the path's name, or "?" for an invalid path.
func (p Path) String() string {
	if p >= Paths {
		return "?"
	}

	return pathNames[p]
}

// traits describes an operation. The methods of Operation document the fields.
type traits struct {
	name        string
	send, recv  Extent
	reduces     bool
	hasRoot     bool
	isMessage   bool // see PointToPoint
	usesWindows bool
	waitsForAll bool
	note        string
	paths       []Path // see SupportsPath
}

var operationTraits = [Operations]traits{
	AllReduce: {
		name: "AllReduce", send: OnePart, recv: OnePart, reduces: true, usesWindows: true,
		waitsForAll: true, paths: allPaths,
	},
	AllGather: {
		name: "AllGather", send: OnePart, recv: AllParts, usesWindows: true, waitsForAll: true,
		paths: allPaths,
	},
	ReduceScatter: {
		name: "ReduceScatter", send: AllParts, recv: OnePart, reduces: true, usesWindows: true,
		waitsForAll: true, paths: allPaths,
	},
	Broadcast: {
		name: "Broadcast", send: OnePart, recv: OnePart, hasRoot: true, usesWindows: true,
		paths: oneMachinePaths,
	},
	Reduce: {
		name: "Reduce", send: OnePart, recv: OnePart, reduces: true, hasRoot: true,
		usesWindows: true, paths: oneMachinePaths,
	},
	AllToAll: {
		name: "AllToAll", send: AllParts, recv: AllParts, usesWindows: true, waitsForAll: true,
		paths: oneMachinePaths,
	},
	Send:    {name: "Send", send: OnePart, isMessage: true, paths: []Path{PathPlain}},
	Recv:    {name: "Recv", recv: OnePart, isMessage: true, paths: []Path{PathPlain}},
	Barrier: {name: "Barrier", waitsForAll: true, paths: []Path{PathPlain, PathDirect}},
	AllToAllV: {
		name: "AllToAllV", send: BySplits, recv: BySplits, paths: []Path{PathPlain},
		note: "for symmem_explain; symmem_all_to_all_v makes the call",
	},
	AllGatherV: {
		name: "AllGatherV", send: OnePart, recv: BySplits, waitsForAll: true,
		paths: []Path{PathPlain, PathDirect},
		note:  "for symmem_explain; symmem_all_gather_v makes the call",
	},
	ReduceScatterV: {
		name: "ReduceScatterV", send: BySplits, recv: OnePart, reduces: true, waitsForAll: true,
		paths: []Path{PathPlain, PathDirect},
		note:  "for symmem_explain; symmem_reduce_scatter_v makes the call",
	},
	Gather: {
		name: "Gather", send: OnePart, recv: AllPartsOfRoot, hasRoot: true,
		paths: []Path{PathPlain},
	},
	Scatter: {
		name: "Scatter", send: AllPartsOfRoot, recv: OnePart, hasRoot: true,
		paths: []Path{PathPlain},
	},
	AllReduceRMSNorm: {
		name: "AllReduceRMSNorm", send: OnePart, recv: OnePart, reduces: true, usesWindows: true,
		waitsForAll: true, paths: oneMachinePaths,
	},
	ReduceScatterRMSNorm: {
		name: "ReduceScatterRMSNorm", send: AllParts, recv: OnePart, reduces: true,
		usesWindows: true, waitsForAll: true, paths: []Path{PathPlain, PathDirect},
	},
	Dispatch: {
		name: "Dispatch", usesWindows: true, waitsForAll: true, paths: []Path{PathPlain, PathDirect},
	},
	Combine: {
		name: "Combine", usesWindows: true, waitsForAll: true, paths: []Path{PathPlain, PathDirect},
	},
}

// unknownTraits describes every invalid Operation, such as one from a wrong argument.
var unknownTraits = traits{name: "Operation(?)"}

func (o Operation) traits() *traits {
	if o < Operations {
		return &operationTraits[o]
	}

	return &unknownTraits
}

// String returns the operation's name.
func (o Operation) String() string { return o.traits().name }

// PointToPoint reports whether the operation is a message, which involves only two ranks.
func (o Operation) PointToPoint() bool { return o.traits().isMessage }

// Reduces reports whether the operation combines elements with Call.ReduceOp.
func (o Operation) Reduces() bool { return o.traits().reduces }

// HasRoot reports whether one rank of the operation is its root.
func (o Operation) HasRoot() bool { return o.traits().hasRoot }

// WaitsForAllRanks reports whether no rank can complete the operation before all have started it.
func (o Operation) WaitsForAllRanks() bool { return o.traits().waitsForAll }

// SupportsPath reports whether some calls of the operation can take a path. Offer.Refusal decides
// on each call.
func (o Operation) SupportsPath(path Path) bool { return slices.Contains(o.traits().paths, path) }

// UsesWindows reports whether a call registers its buffers and uses their windows.
func (o Operation) UsesWindows() bool { return o.traits().usesWindows }

// Extents returns the extents of a call's send and receive buffers.
func (o Operation) Extents() (send, recv Extent) { return o.traits().send, o.traits().recv }

// HasSplits reports whether a call of the operation needs Call.Splits.
func (o Operation) HasSplits() bool {
	send, recv := o.Extents()
	return send == BySplits || recv == BySplits
}

// SplitsOneBuffer reports whether Splits divides only one buffer. All ranks then have the same
// counts.
func (o Operation) SplitsOneBuffer() bool {
	send, recv := o.Extents()
	return (send == BySplits) != (recv == BySplits)
}

// HasInPlace reports whether NCCL permits the operation in place; see Call.InPlace.
func (o Operation) HasInPlace() bool {
	send, recv := o.Extents()
	usesBoth := send != NoPart && recv != NoPart
	hasOnePart := send == OnePart || recv == OnePart
	return usesBoth && hasOnePart
}

// WithoutNorm returns the operation that computes the sums for a norm, or o if o has no norm.
func (o Operation) WithoutNorm() Operation {
	switch o {
	case AllReduceRMSNorm:
		return AllReduce
	case ReduceScatterRMSNorm:
		return ReduceScatter
	default:
		return o
	}
}

// HasNorm reports whether a call of the operation needs Call.Norm.
func (o Operation) HasNorm() bool { return o != o.WithoutNorm() }

// HasNumber reports whether symmem.h and the Python package have a number for the operation.
func (o Operation) HasNumber() bool { return o < AllReduceRMSNorm }

// Note returns a restriction on the use of the operation's number in symmem.h, or "".
func (o Operation) Note() string { return o.traits().note }

// HasTuningRules reports whether tuning tables can have rules that choose the operation's path by
// size. Other operations with several paths use the rules of a related operation.
func (o Operation) HasTuningRules() bool {
	hasSeveralPaths := len(o.traits().paths) > 1
	return o.UsesWindows() && hasSeveralPaths && o.HasNumber()
}
