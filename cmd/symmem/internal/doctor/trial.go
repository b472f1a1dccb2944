package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"symmem/internal/ranklist"
)

// In a trial, all ranks make the same calls: all-reduces of memory in a window (memory that NCCL
// has registered on all ranks). Each call requests a path, which is a way to execute it. On GPUs,
// the paths include:
//
//	direct   symmem's kernels
//	window   NCCL's kernels for windows
//	plain    NCCL's other kernels
//
// For example, a call of 4 KiB requests the direct path, but takes the plain path. The reason is
// that NVLink does not connect the GPUs. The judge functions convert such results to findings. On
// rank 0, NCCL's log may also show which kernel each call used.

// Values of TrialCall.RequestedPath and Path that the judge functions compare.
const (
	directPath = "direct"
	windowPath = "window"
)

// Trial holds the results of a trial.
type Trial struct {
	Ranks int `json:"ranks"` // number of ranks
	RankZeroResults
	// Error states why ranks could not be started or did not finish.
	Error string `json:"error,omitempty"`
	// RankResults is sorted by rank. It lacks ranks without a result.
	RankResults []RankResult `json:"accounts"`
}

// RankZeroResults holds the results that only rank 0 measures.
type RankZeroResults struct {
	Source         string `json:"source"` // what started the ranks, such as "torchrun"
	Device         string `json:"device"` // name of the GPU or processor
	IsLogRequested bool   `json:"logged"` // whether NCCL's log is read
	// LogProblem states why the log does not show which kernels ran, or is empty.
	LogProblem string `json:"log_trouble,omitempty"`
	// WindowProblem states why NCCL registers no windows, or is empty. It may be empty although
	// there is a reason, because not all logs show one.
	WindowProblem string      `json:"window_trouble,omitempty"`
	Copies        []CopySpeed `json:"copies,omitempty"`
	// CopyProblem states why Copies could not be measured, or is empty.
	CopyProblem string `json:"copy_trouble,omitempty"`
}

// CopySpeed holds the speed of copies between two GPUs.
type CopySpeed struct {
	From int     `json:"from"` // ordinal of the GPU
	To   int     `json:"to"`   // ordinal of the GPU
	GBps float64 `json:"gb_per_s"`
}

// RankResult holds the results of one rank.
type RankResult struct {
	Rank int `json:"rank"`
	// Error is the error that ended the trial early, or empty.
	Error       string      `json:"error,omitempty"`
	WindowCount int         `json:"windows"` // number of windows
	Calls       []TrialCall `json:"calls"`   // the same calls on all ranks
	// RankZeroResults is nil unless Rank is 0.
	*RankZeroResults
}

// TrialCall holds the result of one call.
type TrialCall struct {
	Operation     string  `json:"operation"`
	Bytes         int64   `json:"bytes"`
	RequestedPath string  `json:"asked"`
	Path          string  `json:"path"`             // the path that symmem chose
	PathReason    string  `json:"why"`              // why symmem chose it
	Microseconds  float64 `json:"us"`               // time of a call, including its launch
	WrongCount    int64   `json:"wrong"`            // number of wrong elements
	Kernel        string  `json:"kernel,omitempty"` // name in NCCL's log, or "" if unknown
	UsedWindows   bool    `json:"windowed"`         // whether the log shows a kernel for windows
}

// NewTrial combines the results of the ranks of a trial. It sorts results by rank. err is the error
// of the trial, or nil.
func NewTrial(ranks int, results []RankResult, err error) *Trial {
	t := &Trial{Ranks: ranks, RankResults: results}
	if err != nil {
		t.Error = err.Error()
	}

	slices.SortFunc(t.RankResults, func(a, b RankResult) int { return cmp.Compare(a.Rank, b.Rank) })
	if len(t.RankResults) > 0 && t.RankResults[0].RankZeroResults != nil {
		t.RankZeroResults = *t.RankResults[0].RankZeroResults
	}

	return t
}

// judgeTrial adds findings about the trial to s. If the trial failed, it adds only the errors.
func judgeTrial(f *Facts, s *Section) {
	t := f.Trial
	if t == nil {
		s.addOK("no ranks were started")
		return
	}

	hasFailed := t.judgeErrors(s)
	hasResults := len(t.RankResults) > 0
	if hasFailed || !hasResults {
		return
	}

	first := &t.RankResults[0] // all ranks make the same calls
	library := ""
	if f.usesNCCL() {
		library = " with NCCL " + f.Library.Text
	}

	s.addOK("%s (%s) on %s%s, %s", ranklist.Plural(t.Ranks, "rank"), t.Source, t.Device, library,
		ranklist.Plural(first.WindowCount, "window"))
	t.judgeWindows(s)
	for i := range first.Calls {
		t.judgeCall(f, s, i)
	}

	t.judgeDirect(s)
	t.judgeLog(s)
	t.judgeCopies(s)
}

// judgeErrors adds a finding to s for each error, and reports whether there is one.
func (t *Trial) judgeErrors(s *Section) (hasFailed bool) {
	if t.Error != "" {
		s.add(Fail, "see the messages of the ranks above, and run symmem verify", "%s", t.Error)
		hasFailed = true
	}

	for i := range t.RankResults {
		r := &t.RankResults[i]
		if r.Error != "" {
			s.add(Fail, "see the findings above; NCCL_DEBUG=INFO shows what NCCL does",
				"rank %d: %s", r.Rank, r.Error)
			hasFailed = true
		}
	}

	return hasFailed
}

// judgeWindows adds a finding to s if NCCL registers no windows.
func (t *Trial) judgeWindows(s *Section) {
	if t.WindowProblem != "" {
		s.add(Warn, "nothing, if other paths are fast enough; between machines, "+
			"docs/guides/several-machines.md lists what windows need",
			"NCCL registers no windows for these ranks: %s", t.WindowProblem)
	}
}

// judgeCall adds a finding about call i to s. It leaves out calls that have not taken the direct
// path although they requested it, because judgeDirect reports this once for all calls.
func (t *Trial) judgeCall(f *Facts, s *Section, i int) {
	c := &t.RankResults[0].Calls[i]
	text := fmt.Sprintf("%s of %s: %s path, %s", c.Operation, formatBytes(c.Bytes), c.Path,
		FormatMicroseconds(c.Microseconds))
	if c.Kernel != "" {
		text += ", " + c.Kernel
	}

	wrong := t.ranksWithWrongSums(i)
	tookOtherPath := c.Path != c.RequestedPath
	requestedWindow := f.usesNCCL() && c.RequestedPath == windowPath
	usedPlainKernel := c.Kernel != "" && !c.UsedWindows // as NCCL's log shows
	const seeAbove = "look for the reason among the findings above"
	switch {
	case len(wrong) > 0:
		s.add(Fail, "run symmem verify --check off for details; see NCCL's version above",
			"%s: wrong sums on rank %s", text, strings.Join(wrong, ", "))
	case tookOtherPath && c.RequestedPath == directPath:
	case tookOtherPath && t.Ranks == 1: // expected, so no reason to warn
		s.addOK("%s: %s", text, c.PathReason)
	case tookOtherPath:
		s.add(Warn, seeAbove, "%s, although the %s path was requested: %s", text, c.RequestedPath,
			c.PathReason)
	case requestedWindow && usedPlainKernel:
		s.add(Warn, seeAbove,
			"%s: the buffers are in a window, but NCCL did not choose a window kernel", text)
	default:
		s.addOK("%s", text)
	}
}

// FormatMicroseconds formats a time in microseconds, milliseconds or seconds.
func FormatMicroseconds(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.4g s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.4g ms", us/1e3)
	}

	return fmt.Sprintf("%.4g us", us)
}

// ranksWithWrongSums returns the ranks on which call i gave a wrong result.
func (t *Trial) ranksWithWrongSums(i int) []string {
	var ranks []string
	for j := range t.RankResults {
		r := &t.RankResults[j]
		if i < len(r.Calls) && r.Calls[i].WrongCount > 0 {
			ranks = append(ranks, fmt.Sprint(r.Rank))
		}
	}

	return ranks
}

// judgeDirect adds a finding to s about the first call that has not taken the direct path although
// it requested it. Without such a call, it adds none.
func (t *Trial) judgeDirect(s *Section) {
	calls := t.RankResults[0].Calls
	first := slices.IndexFunc(calls, func(c TrialCall) bool {
		return c.RequestedPath == directPath && c.Path != directPath
	})
	if first < 0 {
		return
	}

	c := &calls[first]
	if t.Ranks == 1 { // expected, so no reason to warn
		s.addOK("no direct path: %s", c.PathReason)
		return
	}

	s.add(Warn, "for fast small messages, use 2 to 8 GPUs of one machine that are all connected "+
		"by NVLink, and start ranks that see each other's processes",
		"direct path not used for all-reduce of %s: %s", formatBytes(c.Bytes), c.PathReason)
}

// judgeLog adds a finding to s about whether NCCL's log shows the kernels of the calls. The log
// cannot show the kernels of the direct path, because symmem runs them without NCCL.
func (t *Trial) judgeLog(s *Section) {
	if !t.IsLogRequested || t.Ranks == 1 {
		return
	}

	calls := t.RankResults[0].Calls
	lacksKernel := func(c TrialCall) bool { return c.Kernel == "" && c.Path != directPath }
	usedWindows := func(c TrialCall) bool { return c.RequestedPath == windowPath && c.UsedWindows }
	switch {
	case t.LogProblem != "":
		s.add(Warn, "run doctor without NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE",
			"cannot determine which kernels ran: %s", t.LogProblem)
	case slices.ContainsFunc(calls, lacksKernel):
		s.add(Warn, "run doctor with NCCL_DEBUG=INFO, and read the log",
			"cannot determine which kernels ran: NCCL's log does not show it")
	case slices.ContainsFunc(calls, usedWindows):
		s.addOK("NCCL's own log shows that window kernels ran")
	}
}

// judgeCopies adds the speeds of copies to s, and why others could not be measured.
func (t *Trial) judgeCopies(s *Section) {
	for _, c := range t.Copies {
		s.addOK("copy from GPU %d to GPU %d: %.0f GB/s", c.From, c.To, c.GBps)
	}

	if t.CopyProblem != "" {
		s.addOK("could not measure GPU-to-GPU copy speed: %s", t.CopyProblem)
	}
}
