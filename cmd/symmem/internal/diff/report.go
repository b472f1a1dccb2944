package diff

import "symmem/cmd/symmem/internal/diff/history"

// Report is the result of Compare. A sequence is the list of events of a pool or a group.
type Report struct {
	RanksAgree bool             `json:"agree"`     // whether all sequences agree between the ranks
	Ranks      []RankInfo       `json:"ranks"`     // one for each file
	Sequences  []SequenceResult `json:"sequences"` // one for each compared pool or group
	Notes      []string         `json:"notes"`     // what was not compared
	// FileNotes contains the elements of Notes that concern missing files or files of another run.
	FileNotes []string `json:"-"`
}

// HasComparison reports whether at least two ranks have events of the same pool or group.
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
	Members             []Member      `json:"-"` // Members[i] belongs to Ranks[i]
}

// Member describes what was compared on one rank.
type Member struct {
	RankIndex       int // index in Report.Ranks
	History         *history.Rank
	Sequence        *history.Sequence // nil if the rank has no events of the pool or group
	SkippedRequests int               // number of requests at the beginning that were not compared
}

// Difference describes the first event that differs between ranks.
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

// Variant describes what a set of ranks did at the first difference.
type Variant struct {
	Ranks []int  `json:"ranks"`
	Text  string `json:"text"` // description of the event
	// EventIndex is the event's index in the file of Ranks[0], or -1 if that file ends earlier.
	EventIndex int64    `json:"number"`
	Stack      []string `json:"stack"` // call stack of the event, innermost frame first
	// DifferenceKind is one of the Kind constants. It states how this variant differs from the
	// first variant, which is the most frequent one. It is empty in the first variant.
	DifferenceKind string `json:"kind,omitempty"`
}

// ReplayResult describes the places that the allocators of symmem and PyTorch would choose for the
// recorded requests.
type ReplayResult struct {
	SymmemText  string `json:"symmem"`  // whether symmem would place all blocks equally on all ranks
	PyTorchText string `json:"pytorch"` // whether PyTorch's rule explains the recorded places
	// SymmemFirst is the index of the first request that symmem would place differently on two
	// ranks, or -1.
	SymmemFirst int `json:"symmem_first"`
}
