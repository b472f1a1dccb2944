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
	Requests *Difference   `json:"requests,omitempty"`
	Places   *Difference   `json:"places,omitempty"`
	Replay   *Replay       `json:"replay,omitempty"`
	Notes    []string      `json:"notes"`
	Class    history.Class `json:"-"`
	// Members describes the compared history of each of the Ranks.
	Members []Member `json:"-"`
}

// Member describes what was compared on one rank.
type Member struct {
	// Rank is the index of the rank in Report.Ranks.
	Rank    int
	History *history.Rank
	// Sequence is the pool or group in History, or nil if the rank does not have the pool or group.
	Sequence *history.Sequence
	// Skipped is the number of the rank's requests that precede the comparison.
	Skipped int
}

// Difference describes the first event that differs between ranks.
type Difference struct {
	// Kind is one of the Kind constants.
	Kind string `json:"kind"`
	// Index is the number of the request, counted from the first request that was compared.
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
	// Number is the number of the event in the file of Ranks[0], or -1 if that file ends earlier.
	Number int64    `json:"number"`
	Stack  []string `json:"stack"`
	// Kind names the difference from the first variant. If there is a majority, the first variant
	// describes the majority. Kind is empty in the first variant.
	Kind string `json:"kind,omitempty"`
}

// Replay describes, in words, where the requests would be placed by symmem's rule and by PyTorch's.
type Replay struct {
	Symmem  string `json:"symmem"`
	PyTorch string `json:"pytorch"`
	// SymmemFirst is the index of the first request that symmem would place differently on two
	// ranks, or -1 if there is none.
	SymmemFirst int `json:"symmem_first"`
}
