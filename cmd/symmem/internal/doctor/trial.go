package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"symmem/internal/ranklist"
)

// Trial is what ranks found that opened the backend and all-reduced windows.
type Trial struct {
	Ranks int `json:"ranks"`
	Surroundings
	// Error says why ranks could not be started, or did not come to an end.
	Error string `json:"error,omitempty"`
	// Accounts are those of ranks that could tell, by rank.
	Accounts []Account `json:"accounts"`
}

// Surroundings are what one rank tells about a trial as a whole.
type Surroundings struct {
	Source string `json:"source"`
	Device string `json:"device"`
	// Trouble says why NCCL's log does not say which kernels ran, on the rank that it is asked of;
	// Logged reports whether it was asked.
	Logged  bool   `json:"logged"`
	Trouble string `json:"log_trouble,omitempty"`
	// Copies are the speeds between GPUs, if they were measured, and CopyTrouble is why not.
	Copies      []Copy `json:"copies,omitempty"`
	CopyTrouble string `json:"copy_trouble,omitempty"`
}

// Account is what one rank tells.
type Account struct {
	Rank int `json:"rank"`
	// Error is what ended it early.
	Error string `json:"error,omitempty"`
	// Windows is the number of windows of the world.
	Windows int `json:"windows"`
	// Calls are the collectives of the trial.
	Calls []TrialCall `json:"calls"`
	// Rank 0 alone tells these; else they are nil.
	*Surroundings
}

// TrialCall is one all-reduce of memory in a window.
type TrialCall struct {
	Operation string `json:"operation"`
	Bytes     int64  `json:"bytes"`
	// Asked is the path that the group was set to, Path the one that Explain names, and Why its
	// reason.
	Asked string `json:"asked"`
	Path  string `json:"path"`
	Why   string `json:"why"`
	// MicroS is the time of a call in microseconds, launches included.
	MicroS float64 `json:"us"`
	// Wrong counts wrong elements.
	Wrong int64 `json:"wrong"`
	// Kernel is what NCCL's log says, and Windowed that it was over windows; empty without a log.
	Kernel   string `json:"kernel,omitempty"`
	Windowed bool   `json:"windowed"`
}

// Copy is the speed of copies from one GPU's memory to another's.
type Copy struct {
	From int     `json:"from"`
	To   int     `json:"to"`
	GBps float64 `json:"gb_per_s"`
}

// Join makes a trial of the accounts of its ranks.
func Join(ranks int, accounts []Account, failed error) *Trial {
	t := &Trial{Ranks: ranks, Accounts: accounts}
	if failed != nil {
		t.Error = failed.Error()
	}
	slices.SortFunc(t.Accounts, func(a, b Account) int { return cmp.Compare(a.Rank, b.Rank) })
	if len(t.Accounts) > 0 && t.Accounts[0].Surroundings != nil {
		t.Surroundings = *t.Accounts[0].Surroundings
	}
	return t
}

func judgeTrial(f *Facts, s *Section) {
	t := f.Trial
	if t == nil {
		s.ok("no ranks were started")
		return
	}
	if t.Error != "" {
		s.add(Fail, "see what the ranks say above, and symmem verify", "%s", t.Error)
	}
	for i := range t.Accounts {
		if a := &t.Accounts[i]; a.Error != "" {
			s.add(Fail, "see the findings above; NCCL_DEBUG=INFO shows what NCCL does",
				"rank %d: %s", a.Rank, a.Error)
		}
	}
	if s.Level == Fail || len(t.Accounts) == 0 {
		return
	}
	first := &t.Accounts[0]
	library := ""
	if f.nccl() {
		library = " with NCCL " + f.Library.Text
	}
	s.ok("%s (%s) on %s%s, %s", ranklist.Plural(t.Ranks, "rank"), t.Source, t.Device, library,
		ranklist.Plural(first.Windows, "window"))
	for i := range first.Calls {
		t.judgeCall(f, s, i)
	}
	t.judgeDirect(s)
	t.judgeLog(s)
	for _, c := range t.Copies {
		s.ok("copy from GPU %d to GPU %d: %.0f GB/s", c.From, c.To, c.GBps)
	}
	if t.CopyTrouble != "" {
		s.ok("how fast copies between GPUs are is not known: %s", t.CopyTrouble)
	}
}

// microseconds writes a time of any length.
func microseconds(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.4g s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.4g ms", us/1e3)
	}
	return fmt.Sprintf("%.4g us", us)
}

// judgeCall looks at the i-th call of all ranks.
func (t *Trial) judgeCall(f *Facts, s *Section, i int) {
	c := &t.Accounts[0].Calls[i]
	text := fmt.Sprintf("%s of %s: %s path, %s", c.Operation, size(c.Bytes), c.Path,
		microseconds(c.MicroS))
	if c.Kernel != "" {
		text += ", " + c.Kernel
	}
	if wrong := t.wrong(i); len(wrong) > 0 {
		s.add(Fail, "symmem verify --check off finds out more; see NCCL's version above",
			"%s: wrong sums on rank %s", text, strings.Join(wrong, ", "))
		return
	}
	switch {
	case c.Asked == direct && c.Asked != c.Path:
		// judgeDirect says so once.
	case c.Asked != c.Path && t.Ranks == 1:
		s.ok("%s: %s", text, c.Why)
	case c.Asked != c.Path:
		s.add(Warn, "look for what stands in the way among the findings above", "%s, although the "+
			"%s path was asked for: %s", text, c.Asked, c.Why)
	case f.nccl() && c.Asked == "window" && c.Kernel != "" && !c.Windowed:
		s.add(Warn, "look for what stands in the way among the findings above", "%s: the buffers "+
			"lie in a window, and NCCL took no kernel for windows", text)
	default:
		s.ok("%s", text)
	}
}

// direct is the name of the direct path.
const direct = "direct"

// judgeDirect says why sums did not go direct, if they did not.
func (t *Trial) judgeDirect(s *Section) {
	for _, c := range t.Accounts[0].Calls {
		switch {
		case c.Asked != direct || c.Path == direct:
			continue
		case t.Ranks == 1:
			s.ok("no direct path: %s", c.Why)
		default:
			s.add(Warn, "the other paths serve, small messages are slower; it takes 2 to 8 GPUs of one "+
				"machine that all reach each other over NVLink, and ranks that see each other's "+
				"processes", "no direct path, for all-reduce of %s or at all: %s", size(c.Bytes), c.Why)
		}
		return
	}
}

// wrong lists the ranks that saw wrong elements.
func (t *Trial) wrong(i int) []string {
	var ranks []string
	for a := range t.Accounts {
		account := &t.Accounts[a]
		if i < len(account.Calls) && account.Calls[i].Wrong > 0 {
			ranks = append(ranks, fmt.Sprint(account.Rank))
		}
	}
	return ranks
}

// judgeLog says whether NCCL's own log has shown what ran.
func (t *Trial) judgeLog(s *Section) {
	if !t.Logged || t.Ranks == 1 {
		return
	}
	silent := func(c TrialCall) bool { return c.Kernel == "" && c.Path != direct }
	switch {
	case t.Trouble != "":
		s.add(Warn, "run doctor without that variable", "which kernels ran is not known: %s", t.Trouble)
	case slices.ContainsFunc(t.Accounts[0].Calls, silent):
		s.add(Warn, "run doctor with NCCL_DEBUG=INFO, and look at the log that stays",
			"which kernels ran is not known: NCCL's log does not tell")
	case slices.ContainsFunc(t.Accounts[0].Calls, func(c TrialCall) bool {
		return c.Asked == "window" && c.Windowed
	}):
		s.ok("NCCL's own log shows that kernels over windows ran")
	}
}
