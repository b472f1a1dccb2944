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

// Sequence holds the result for a pool or a group.
type Sequence struct {
	Title string `json:"title"`
	// Ranks lists the ranks that were compared.
	Ranks []int `json:"ranks"`
	// Equal is the number of requests at the beginning that are the same on all ranks.
	Equal int `json:"equal"`
	// Requests and Places describe the first difference, if there is one.
	Requests *Difference `json:"requests,omitempty"`
	Places   *Difference `json:"places,omitempty"`
	Replay   *Replay     `json:"replay,omitempty"`
	Notes    []string    `json:"notes"`
	// Class is the class of the pool or group. Members describes what was compared, in the same
	// order as Ranks.
	Class   history.Class `json:"-"`
	Members []Member      `json:"-"`
}

// Member describes the part of a rank in a comparison.
type Member struct {
	// Rank is the index of the rank in Report.Ranks.
	Rank int
	// History is the rank's history. Sequence is the pool or group in it, or nil if the rank has
	// none.
	History  *history.Rank
	Sequence *history.Sequence
	// Skipped is the number of requests that precede the beginning of the comparison.
	Skipped int
}

// Difference describes the first event that differs.
type Difference struct {
	// Kind is one of the Kind constants.
	Kind string `json:"kind"`
	// Index is the number of the request in the pool or group, counted from 0 from the beginning of
	// the comparison.
	Index    int       `json:"index"`
	Variants []Variant `json:"variants"`
	// Blamed lists the ranks of the minority. It is empty if there is no majority.
	Blamed []int `json:"blamed"`
	// Before lists the last requests before the difference, which are the same on all ranks.
	Before []string `json:"before"`
	// Explanation states whether this difference alone explains the rest.
	Explanation []string `json:"explanation"`
}

// Variant describes the event at the first difference on some of the ranks.
type Variant struct {
	Ranks []int  `json:"ranks"`
	Text  string `json:"text"`
	// Number is the number of the event in the file of the first of these ranks. It is -1 if that
	// file ends before the event.
	Number int64    `json:"number"`
	Stack  []string `json:"stack"`
	// Kind names the difference from the majority or, if there is none, from the first variant. It
	// is empty for the majority or the first variant itself.
	Kind string `json:"kind,omitempty"`
}

// Replay describes where ranks would place the same requests under two rules.
type Replay struct {
	// Symmem and PyTorch describe the result of each rule.
	Symmem  string `json:"symmem"`
	PyTorch string `json:"pytorch"`
	// SymmemFirst is the first allocation that symmem would place differently, or -1.
	SymmemFirst int `json:"symmem_first"`
}
