package diff

import "symmem/cmd/symmem/internal/diff/history"

// For example, request 7 of a pool is "alloc 512 B" on ranks 0 and 1, but "alloc 1024 B" on rank 2.
// The Report contains a SequenceResult for the pool, whose RequestDifference has:
//
//   - The Kind "different size" and the RequestIndex 7.
//   - Two Variants, one for each of the two texts. The one of more ranks, 0 and 1, is first.
//   - The MinorityRanks [2].

// Report is the result of Compare.
type Report struct {
	RanksAgree bool             `json:"agree"`     // whether no difference was found
	Ranks      []RankInfo       `json:"ranks"`     // one for each file
	Sequences  []SequenceResult `json:"sequences"` // one for each compared pool or group
	Notes      []string         `json:"notes"`     // what was not compared, and FileNotes
	FileNotes  []string         `json:"-"`         // about missing files and files of another run
}

// HasComparison reports whether a pool or group was compared on at least two ranks.
func (r *Report) HasComparison() bool {
	for i := range r.Sequences {
		if len(r.Sequences[i].Ranks) > 1 {
			return true
		}
	}

	return false
}

// RankInfo describes the file of a rank.
type RankInfo struct {
	Rank       int      `json:"rank"`   // number of the rank
	File       string   `json:"file"`   // path of the file
	Format     string   `json:"format"` // name of the file's format
	EventCount int      `json:"events"`
	Notes      []string `json:"notes"` // what cannot be determined from the file
}

// SequenceResult holds the result of comparing one pool or group.
type SequenceResult struct {
	Title         string `json:"title"` // name of the pool or group
	Ranks         []int  `json:"ranks"` // numbers of the compared ranks
	EqualRequests int    `json:"equal"` // number of requests before the first difference
	// RequestDifference is the first difference between requests, or nil.
	RequestDifference *Difference `json:"requests,omitempty"`
	// PlacementDifference is the first difference between the places of blocks, or nil.
	PlacementDifference *Difference   `json:"places,omitempty"`
	Replay              *ReplayResult `json:"replay,omitempty"` // nil if nothing was replayed
	Notes               []string      `json:"notes"`            // what was not compared, and why
	Class               history.Class `json:"-"`
	Members             []Member      `json:"-"` // Members[i] describes Ranks[i]
}

// Member describes the compared events of one rank.
type Member struct {
	RankIndex       int // index in Report.Ranks
	History         *history.Rank
	Sequence        *history.Sequence // nil if the rank has no events of the pool or group
	SkippedRequests int               // number of first requests that were not compared
}

// Difference describes the first request that differs between ranks.
type Difference struct {
	Kind         string    `json:"kind"`  // one of the Kind constants
	RequestIndex int       `json:"index"` // number of compared requests before the difference
	Variants     []Variant `json:"variants"`
	// MinorityRanks lists the ranks that deviate from the majority. Without a majority, it is
	// empty.
	MinorityRanks []int `json:"blamed"`
	// PrecedingRequests describes the last requests before the difference, oldest first.
	PrecedingRequests []string `json:"before"`
	// Explanation states whether this difference explains all later ones.
	Explanation []string `json:"explanation"`
}

// Variant describes the request on the ranks that agree about it.
type Variant struct {
	Ranks []int  `json:"ranks"`
	Text  string `json:"text"` // description of the request
	// EventIndex is the history.Event.Number of the request on Ranks[0]. It is -1 if the trace of
	// that rank ends before the request.
	EventIndex int64    `json:"number"`
	Stack      []string `json:"stack"` // call stack of the request, innermost frame first
	// DifferenceKind is the Kind constant for the difference between this variant and the first. It
	// is empty in the first variant.
	DifferenceKind string `json:"kind,omitempty"`
}

// ReplayResult describes a replay: the places that the recorded requests would get from symmem's
// allocator, and from PyTorch's.
type ReplayResult struct {
	SymmemText  string `json:"symmem"`  // whether symmem would choose the same places on all ranks
	PyTorchText string `json:"pytorch"` // whether PyTorch's rule explains the recorded places
	// SymmemFirst is the index of the first request that symmem would place differently on two
	// ranks, or -1.
	SymmemFirst int `json:"symmem_first"`
}
