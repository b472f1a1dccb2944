package diff

import "symmem/cmd/symmem/internal/diff/history"

// Report is the result of Compare.
type Report struct {
	// Agree is set if no difference was found.
	Agree     bool       `json:"agree"`
	Ranks     []RankInfo `json:"ranks"`
	Sequences []Sequence `json:"sequences"`
	// Notes lists what was not compared.
	Notes []string `json:"notes"`
}

// Compared reports whether any sequence was found on at least two ranks.
func (r *Report) Compared() bool {
	for i := range r.Sequences {
		if len(r.Sequences[i].Ranks) > 1 {
			return true
		}
	}
	return false
}

// RankInfo describes the file of a rank.
type RankInfo struct {
	Rank   int      `json:"rank"`
	File   string   `json:"file"`
	Format string   `json:"format"`
	Events int      `json:"events"`
	Notes  []string `json:"notes"`
}

// Sequence holds the result of comparing one pool or group.
type Sequence struct {
	Title string `json:"title"`
	// Ranks lists the ranks that were compared.
	Ranks []int `json:"ranks"`
	// Equal is the number of requests before the first one that differs between ranks.
	Equal int `json:"equal"`
	// Requests and Places describe the first difference, if there is one.
	Requests *Difference `json:"requests,omitempty"`
	Places   *Difference `json:"places,omitempty"`
	Replay   *Replay     `json:"replay,omitempty"`
	Notes    []string    `json:"notes"`
	// Class is the class of the pool or group. Members describes the history of each rank that was
	// compared, in the same order as Ranks.
	Class   history.Class `json:"-"`
	Members []Member      `json:"-"`
}

// Member describes what was compared on one rank.
type Member struct {
	// Rank is the index of the rank in Report.Ranks.
	Rank int
	// History is the rank's history. Sequence is the pool or group in it, or nil if the rank has
	// none.
	History  *history.Rank
	Sequence *history.Sequence
	// Skipped is the number of requests of the rank that precede the beginning of the comparison.
	Skipped int
}

// Difference describes the first event that differs between ranks.
type Difference struct {
	// Kind is one of the Kind constants.
	Kind string `json:"kind"`
	// Index is the number of the request in the pool or group, where the first request that was
	// compared is 0.
	Index    int       `json:"index"`
	Variants []Variant `json:"variants"`
	// Blamed lists the ranks that deviate from the majority. It is empty if there is no majority.
	Blamed []int `json:"blamed"`
	// Before describes the last requests before the difference, which are the same on all ranks.
	Before []string `json:"before"`
	// Explanation states whether this difference alone explains the rest.
	Explanation []string `json:"explanation"`
}

// Variant describes what a set of ranks did at the first difference.
type Variant struct {
	Ranks []int  `json:"ranks"`
	Text  string `json:"text"`
	// Number is the number of the event in the file of Ranks[0], or -1 if that file ends before the
	// event.
	Number int64    `json:"number"`
	Stack  []string `json:"stack"`
	// Kind names the difference between this variant and the majority's variant. If there is no
	// majority, it names the difference from the first variant. It is empty for the variant with
	// which the others are compared.
	Kind string `json:"kind,omitempty"`
}

// Replay describes where the ranks would have placed the requests by symmem's rule and by
// PyTorch's.
type Replay struct {
	// Symmem and PyTorch are texts that describe the results of the two rules.
	Symmem  string `json:"symmem"`
	PyTorch string `json:"pytorch"`
	// SymmemFirst is the index of the first request that symmem would have placed differently on
	// two ranks, or -1 if there is none.
	SymmemFirst int `json:"symmem_first"`
}
