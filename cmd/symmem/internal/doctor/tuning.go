package doctor

import (
	"fmt"
	"os"

	"symmem/internal/ranklist"
	"symmem/internal/tuning"
)

// Tuning describes a tuning table, whose rules choose how calls are executed: with NCCL's kernels
// (plain and window paths) or symmem's kernels (direct path). Most rules apply to one number of
// ranks, so a table measured with 8 ranks may have none for 4 ranks.
type Tuning struct {
	Name          string `json:"name"`               // "" if there is no table
	Digest        string `json:"digest"`             // hash of the rules
	File          string `json:"file"`               // path of the user's table, which may be missing
	RuleCount     int    `json:"rules"`              // rules for Ranks on one machine
	HasDirectRule bool   `json:"direct"`             // a rule about the direct path can apply
	Ranks         int    `json:"ranks"`              // number of ranks to check for rules
	MeasuredOn    string `json:"measured,omitempty"` // date of the measurement
	MeasuredWith  string `json:"library,omitempty"`  // measured library, such as "NCCL 2.28.9"
	Error         string `json:"error,omitempty"`    // why the file is unusable, or empty
}

// ReadTuning returns the tuning table that symmem.Open would use: the table in file or, if the file
// is missing and not required, the built-in table. It returns nil without an error if the backend
// needs a device and there is none.
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

// InspectTuning describes the table that ReadTuning returns.
func InspectTuning(backend, device string, ranks int, file string, required bool) Tuning {
	t := Tuning{File: file, Ranks: ranks}
	table, err := ReadTuning(backend, device, file, required)
	if err != nil {
		t.Error = err.Error()
		return t
	}

	if table == nil { // no GPU, so symmem.Open uses no table
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

		isForAnyRanks := r.Ranks == 0
		isDirectRule := r.Memory != "" // only rules about the direct path name a kind of memory
		if isDirectRule && (isForRanks || isForAnyRanks) {
			t.HasDirectRule = true
		}
	}

	return t
}

// fileExists treats an inaccessible file as missing, as symmem.Open does.
func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

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
	if !f.usesNCCL() || t.Ranks < 2 { // the path does not matter
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

// describePathWithoutRule states which path calls take if no rule is for t.Ranks ranks.
func (t *Tuning) describePathWithoutRule() string {
	if t.HasDirectRule {
		return "calls that cannot take the direct path take the plain path"
	}

	return "all calls take the plain path"
}
