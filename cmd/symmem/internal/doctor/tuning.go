package doctor

import (
	"fmt"
	"os"

	"symmem/internal/ranklist"
	"symmem/internal/tuning"
)

// Tuning describes a tuning table. Its rules choose the path of each call: plain, window or direct.
// Most rules apply to one number of ranks.
type Tuning struct {
	Name          string `json:"name"`               // "" if there is no table
	Digest        string `json:"digest"`             // hash of the rules
	File          string `json:"file"`               // path of the user's table; need not exist
	RuleCount     int    `json:"rules"`              // rules for exactly Ranks ranks on one machine
	HasDirectRule bool   `json:"direct"`             // a rule for the direct path covers Ranks
	Ranks         int    `json:"ranks"`              // number of ranks in a group
	MeasuredOn    string `json:"measured,omitempty"` // date of the measurement
	MeasuredWith  string `json:"library,omitempty"`  // measured library, such as "NCCL 2.28.9"
	Error         string `json:"error,omitempty"`    // why the file is unusable, or empty
}

// ReadTuning returns the tuning table that symmem.Open would use. If file is missing and not
// required, the table is built in. It is nil if device is empty, except for the host backend.
func ReadTuning(backend, device, file string, required bool) (*tuning.Table, error) {
	table, err := tuning.ReadFile(file)
	if err == nil {
		table.Origin = "table " + file
		return table, nil
	}

	_, statErr := os.Stat(file)
	isMissing := statErr != nil // or inaccessible, as in symmem.Open
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
		rule := &table.Rules[i]
		isForRanks := rule.Ranks == ranks && rule.Machines == 1
		if isForRanks {
			t.RuleCount++
		}

		isForAnyRanks := rule.Ranks == 0
		isDirectRule := rule.Memory != "" // other rules name no kind of memory
		if isDirectRule && (isForRanks || isForAnyRanks) {
			t.HasDirectRule = true
		}
	}

	return t
}

func judgeTuning(f *Facts, s *Section) {
	t := &f.Tuning
	if t.Error != "" {
		s.add(Fail, "correct the file, remove it, or create a new one with symmem tune",
			"symmem.Open rejects the tuning table: %s", t.Error)
		return
	}

	if t.Name == "" { // no table
		return
	}

	s.addOK("%s, digest %s", t.Name, t.Digest)
	if !f.usesNCCL() || t.Ranks < 2 { // there is only one path
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

// describePathWithoutRule requires RuleCount 0. A direct rule may cover any number of ranks.
func (t *Tuning) describePathWithoutRule() string {
	if t.HasDirectRule {
		return "calls that cannot take the direct path take the plain path"
	}

	return "all calls take the plain path"
}
