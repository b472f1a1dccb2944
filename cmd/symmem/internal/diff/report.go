package diff

import "symmem/cmd/symmem/internal/diff/history"

// Report is the result of Compare.
type Report struct {
	// RanksAgree is set if no difference was found.
	RanksAgree bool             `json:"agree"`
	Ranks      []RankInfo       `json:"ranks"`
	Sequences  []SequenceResult `json:"sequences"`
	// Notes lists what was not compared.
	Notes []string `json:"notes"`
}

// HasComparison reports whether any sequence was found on at least two ranks.
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
	Rank       int      `json:"rank"`
	File       string   `json:"file"`
	Format     string   `json:"format"`
	EventCount int      `json:"events"`
	Notes      []string `json:"notes"`
}

// SequenceResult holds the result of comparing one pool or group.
type SequenceResult struct {
	Title string `json:"title"`
	Ranks []int  `json:"ranks"` // the compared ranks
	// EqualRequests is the number of requests before the first one that differs between ranks.
	EqualRequests int `json:"equal"`
	// RequestDifference describes the first difference of requests, and PlacementDifference that of
	// the places of blocks. Each of them is nil if there is no such difference.
	RequestDifference   *Difference   `json:"requests,omitempty"`
	PlacementDifference *Difference   `json:"places,omitempty"`
	Replay              *ReplayResult `json:"replay,omitempty"`
	Notes               []string      `json:"notes"`
	Class               history.Class `json:"-"`
	// Members describes the compared history of each of the Ranks.
	Members []Member `json:"-"`
}

// Member describes what was compared on one rank.
type Member struct {
	// RankIndex is the index of the rank in Report.Ranks.
	RankIndex int
	History   *history.Rank
	// Sequence lists the events of the pool or group, or is nil if the rank has no such events.
	Sequence *history.Sequence
	// SkippedRequests is the number of requests at the beginning that were not compared.
	SkippedRequests int
}

// Difference describes the first event that differs between ranks.
type Difference struct {
	// Kind is one of the Kind constants.
	Kind string `json:"kind"`
	// RequestIndex is the number of compared requests before the one that differs.
	RequestIndex int       `json:"index"`
	Variants     []Variant `json:"variants"`
	// MinorityRanks lists the ranks that deviate from the majority. It is empty if there is no
	// majority.
	MinorityRanks []int `json:"blamed"`
	// PrecedingRequests describes the last requests before the difference, which are the same on
	// all ranks.
	PrecedingRequests []string `json:"before"`
	// Explanation states whether this difference explains all later differences.
	Explanation []string `json:"explanation"`
}

// Variant describes what a set of ranks did at the first difference.
type Variant struct {
	Ranks []int  `json:"ranks"`
	Text  string `json:"text"`
	// EventIndex is the index of the event in the file of Ranks[0], or -1 if that file ends
	// earlier.
	EventIndex int64    `json:"number"`
	Stack      []string `json:"stack"`
	// DifferenceKind names the difference from the first variant. If there is a majority, the first
	// variant describes the majority. Kind is empty in the first variant.
	DifferenceKind string `json:"kind,omitempty"`
}

// ReplayResult describes the places that symmem's allocator and PyTorch's allocator would choose.
type ReplayResult struct {
	SymmemText  string `json:"symmem"`
	PyTorchText string `json:"pytorch"`
	// SymmemFirst is the index of the first request that symmem would place differently on two
	// ranks, or -1 if there is none.
	SymmemFirst int `json:"symmem_first"`
}
