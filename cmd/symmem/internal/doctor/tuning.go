package doctor

import (
	"fmt"
	"os"

	"symmem/internal/ranklist"
	"symmem/internal/tuning"
)

// Tuning is the table that chooses between the paths.
type Tuning struct {
	// Name is how reasons and errors call it, and Digest stands for what decides in it.
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// File is where a table of this machine's own is looked for.
	File string `json:"file"`
	// Rules counts the rules for Ranks ranks of one machine. Measured is the date of its times, with
	// Library; it is empty if there are none.
	Rules int `json:"rules"`
	// Direct reports whether a rule for these ranks, or a general one, is about the direct path.
	Direct   bool   `json:"direct"`
	Ranks    int    `json:"ranks"`
	Measured string `json:"measured,omitempty"`
	Library  string `json:"library,omitempty"`
	// Error says why the file is of no use.
	Error string `json:"error,omitempty"`
}

// LookAtTuning reads the table of a device and a number of ranks: the file if there is one, or if
// it is required, else the built-in one.
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
		// There is no device to have a table of.
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

// exists reports whether symmem.Open takes a file for one: where it may not look there is none.
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
			"it says nothing about the direct path, which no collective but a barrier takes therefore")
	}
}

// without says what collectives without a rule of their own do.
func (t *Tuning) without() string {
	if t.Direct {
		return "what cannot go direct takes the plain path"
	}
	return "everything takes the plain path"
}
