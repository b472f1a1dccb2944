package doctor

import (
	"fmt"
	"os"

	"symmem/internal/ranklist"
	"symmem/internal/tuning"
)

// Tuning describes the table that chooses between the paths.
type Tuning struct {
	// Name is the table's name in reasons and errors, and Digest the digest of its rules.
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// File is the path of a table for this machine.
	File string `json:"file"`
	// Rules is the number of rules for Ranks ranks on one machine. Measured is the date of its
	// times, and Library the library they were measured with; both are empty without times.
	Rules int `json:"rules"`
	// Direct reports whether a rule for these ranks, or a general one, concerns the direct path.
	Direct   bool   `json:"direct"`
	Ranks    int    `json:"ranks"`
	Measured string `json:"measured,omitempty"`
	Library  string `json:"library,omitempty"`
	// Error is the reason why the file is unusable.
	Error string `json:"error,omitempty"`
}

// LookAtTuning reads the table for a device and a number of ranks: the file if it exists or is
// required, else the built-in table.
func LookAtTuning(backend, device string, ranks int, file string, required bool) Tuning {
	t := Tuning{File: file, Ranks: ranks}
	table, err := tuning.ReadFile(file)
	switch {
	case err == nil:
		table.Origin = "table " + file
	case required || exists(file):
		t.Error = err.Error()
		return t
	case device == "" && backend != "host":
		// Without a device there is no table for it.
		return t
	default:
		table = tuning.Builtin(backend, device)
	}
	t.Name, t.Digest = table.Name(), fmt.Sprintf("%016x", table.Digest())
	t.Measured, t.Library = table.Date, table.Library
	for i := range table.Rules {
		r := &table.Rules[i]
		ours := r.Ranks == ranks && r.Machines == 1
		if ours {
			t.Rules++
		}
		if r.Memory != "" && (ours || r.Ranks == 0) {
			t.Direct = true
		}
	}
	return t
}

// exists reports whether a file exists. Like symmem.Open, it treats an inaccessible file as
// missing.
func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func judgeTuning(f *Facts, s *Section) {
	t := &f.Tuning
	switch {
	case t.Error != "":
		s.add(Fail, "repair the file, remove it, or measure anew: symmem tune",
			"symmem.Open refuses the tuning table: %s", t.Error)
		return
	case t.Name == "":
		return
	}
	s.ok("%s, digest %s", t.Name, t.Digest)
	if !f.nccl() || t.Ranks < 2 {
		return
	}
	ours := "NCCL " + f.Library.Text
	switch {
	case t.Rules == 0:
		s.add(Warn, fmt.Sprintf("symmem tune --ranks %d", t.Ranks), "it has no rule for %d ranks: %s",
			t.Ranks, t.without())
	case t.Library != "" && t.Library != ours:
		s.add(Warn, fmt.Sprintf("symmem tune --ranks %d", t.Ranks), "its %s for %d ranks "+
			"were measured with %s, and this is %s", ranklist.Plural(t.Rules, "rule"), t.Ranks,
			t.Library, ours)
	default:
		s.ok("%s for %d ranks", ranklist.Plural(t.Rules, "rule"), t.Ranks)
	}
	if t.Rules > 0 && !t.Direct {
		s.add(Warn, fmt.Sprintf("symmem tune --ranks %d", t.Ranks),
			"it has no rule for the direct path, so that only barriers take it")
	}
}

// without describes the path of collectives for which the table has no rule.
func (t *Tuning) without() string {
	if t.Direct {
		return "what cannot go direct takes the plain path"
	}
	return "everything takes the plain path"
}
