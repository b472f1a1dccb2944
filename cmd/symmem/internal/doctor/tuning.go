package doctor

import (
	"fmt"
	"os"

	"symmem/internal/ranklist"
	"symmem/internal/tuning"
)

// A tuning table has rules that choose the path of each call, a way to execute it. On GPUs, the
// paths include plain and window (with NCCL's kernels) and direct (with symmem's kernels). Most
// rules are for a certain number of ranks. For example, a table that was measured with 8 ranks may
// have no rule for 4 ranks. Then, 4 ranks mostly use the plain path, and doctor warns.

// Tuning describes the tuning table, and its rules for a number of ranks.
type Tuning struct {
	Name      string `json:"name"`   // "" if there is no table
	Digest    string `json:"digest"` // hash of the rules
	File      string `json:"file"`   // path of the user's table, which may be missing
	RuleCount int    `json:"rules"`  // number of rules for Ranks ranks on one machine
	// HasDirectRule is set if a rule for Ranks ranks, or for any number of ranks, is about the
	// direct path.
	HasDirectRule bool   `json:"direct"`
	Ranks         int    `json:"ranks"`              // number for which the table is judged
	MeasuredOn    string `json:"measured,omitempty"` // date of the measurement
	MeasuredWith  string `json:"library,omitempty"`  // measured library, such as "NCCL 2.28.9"
	Error         string `json:"error,omitempty"`    // why the file is unusable, or empty
}

// ReadTuning returns the tuning table that symmem.Open would use. It reads the table from file. If
// the file is missing and not required, it returns the built-in table for the device. If there is
// no device and the backend is not host, there is no table, and it returns nil and no error.
func ReadTuning(backend, device, file string, required bool) (*tuning.Table, error) {
	table, err := tuning.ReadFile(file)
	if err == nil {
		table.Origin = "table " + file
		return table, nil
	}

	isMissing := !fileExists(file)
	if required || !isMissing {
		return nil, err
	}

	needsDevice := backend != "host"
	if needsDevice && device == "" {
		return nil, nil
	}

	return tuning.Builtin(backend, device), nil
}

// InspectTuning describes the table that ReadTuning returns, and its rules for a number of ranks.
func InspectTuning(backend, device string, ranks int, file string, required bool) Tuning {
	t := Tuning{File: file, Ranks: ranks}
	table, err := ReadTuning(backend, device, file, required)
	if err != nil {
		t.Error = err.Error()
		return t
	}

	if table == nil { // there is no table
		return t
	}

	t.Name = table.Name()
	t.Digest = fmt.Sprintf("%016x", table.Digest())
	t.MeasuredOn = table.Date
	t.MeasuredWith = table.Library
	for i := range table.Rules {
		r := &table.Rules[i]
		isForRanks := r.Ranks == ranks && r.Machines == 1
		if isForRanks {
			t.RuleCount++
		}

		isGeneral := r.Ranks == 0      // for any number of ranks
		isDirectRule := r.Memory != "" // only rules about the direct path name a kind of memory
		if isDirectRule && (isForRanks || isGeneral) {
			t.HasDirectRule = true
		}
	}

	return t
}

// fileExists reports whether a file exists. Like symmem.Open, it treats inaccessible files as
// missing.
func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// judgeTuning adds findings about the tuning table to s.
func judgeTuning(f *Facts, s *Section) {
	t := &f.Tuning
	if t.Error != "" {
		s.add(Fail, "correct the file, remove it, or create a new one with symmem tune",
			"symmem.Open rejects the tuning table: %s", t.Error)
		return
	}

	if t.Name == "" { // there is no table
		return
	}

	s.addOK("%s, digest %s", t.Name, t.Digest)
	doesPathMatter := f.usesNCCL() && t.Ranks >= 2
	if !doesPathMatter {
		return
	}

	advice := fmt.Sprintf("run symmem tune --ranks %d", t.Ranks)
	library := "NCCL " + f.Library.Text
	switch {
	case t.RuleCount == 0:
		s.add(Warn, advice, "the table has no rule for %d ranks, so %s", t.Ranks,
			t.describePathWithoutRule())
	case t.MeasuredWith != "" && t.MeasuredWith != library:
		s.add(Warn, advice, "the table was measured with %s, not with %s (%s for %d ranks)",
			t.MeasuredWith, library, ranklist.Plural(t.RuleCount, "rule"), t.Ranks)
	default:
		s.addOK("%s for %d ranks", ranklist.Plural(t.RuleCount, "rule"), t.Ranks)
	}

	if t.RuleCount > 0 && !t.HasDirectRule {
		s.add(Warn, advice,
			"the table has no rule for the direct path, so only barriers take that path")
	}
}

// describePathWithoutRule states which path calls take if the table has no rule for their ranks.
func (t *Tuning) describePathWithoutRule() string {
	if t.HasDirectRule {
		return "calls that cannot take the direct path take the plain path"
	}

	return "all calls take the plain path"
}
