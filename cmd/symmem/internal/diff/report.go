package diff

import "symmem/cmd/symmem/internal/diff/history"

// Options selects the pools that Compare compares.
type Options struct {
	// AllPools includes PyTorch's default pool and the pools of CUDA graphs even if the program has
	// created memory pools (MemPools).
	AllPools bool
}

// Report is the result of Compare.
type Report struct {
	RanksAgree bool             `json:"agree"`
	Ranks      []RankInfo       `json:"ranks"`     // one for each file
	Sequences  []SequenceResult `json:"sequences"` // one for each compared pool or group
	FileNotes  []string         `json:"-"`         // from checkFiles
	Notes      []string         `json:"notes"`     // FileNotes, and the pools that were not compared
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
	Rank       int      `json:"rank"`   // number
	File       string   `json:"file"`   // path
	Format     string   `json:"format"` // name of the file format
	EventCount int      `json:"events"`
	Notes      []string `json:"notes"` // what cannot be determined from the file
}

// SequenceResult is the result of comparing one pool or group.
type SequenceResult struct {
	Title         string `json:"title"` // name of the pool or group
	Ranks         []int  `json:"ranks"` // numbers of the compared ranks
	EqualRequests int    `json:"equal"` // number of requests before the first difference
	// RequestDifference is the first difference of requests, or nil.
	RequestDifference *Difference `json:"requests,omitempty"`
	// PlacementDifference is the first difference of the blocks' places, or nil.
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
	Kind         string    `json:"kind"`     // one of the Kind constants
	RequestIndex int       `json:"index"`    // from 0, the first compared request
	Variants     []Variant `json:"variants"` // the variant of the most ranks first
	// MinorityRanks lists the ranks outside the majority. It is empty without a majority.
	MinorityRanks []int `json:"blamed"`
	// PrecedingRequests describes the last requests before the difference, oldest first.
	PrecedingRequests []string `json:"before"`
	// Explanation describes the cause, or the later requests.
	Explanation []string `json:"explanation"`
}

// Variant describes one of the different requests.
type Variant struct {
	Ranks []int  `json:"ranks"` // numbers of the ranks that made the request
	Text  string `json:"text"`  // such as "alloc 512 B"
	// EventIndex is the index of the request in the file of Ranks[0], or -1 if the trace has ended.
	EventIndex int64    `json:"number"`
	Stack      []string `json:"stack"` // innermost frame first
	// DifferenceKind is the Kind of the difference from the first variant, or "" in the first variant.
	DifferenceKind string `json:"kind,omitempty"`
}

// ReplayResult describes a replay of the requests by symmem's and PyTorch's placement rules.
type ReplayResult struct {
	SymmemText  string `json:"symmem"`  // states whether symmem would choose equal places on all ranks
	PyTorchText string `json:"pytorch"` // states whether PyTorch's rules yield the recorded places
	// SymmemRequestIndex is the first request that symmem would place differently on two ranks, or -1.
	SymmemRequestIndex int `json:"symmem_first"`
}
