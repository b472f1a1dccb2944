package symmem

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"symmem/driver"
	"symmem/internal/tuning"
)

// A tuning table lists the fastest path (algorithm) for each size of a call. Ranks that take
// different paths in the same AllReduce could wait for each other forever. Therefore, ranks compare
// their tables and other settings when they create a group.

// BuiltInTuning selects the built-in tuning table in Options.Tuning.
const BuiltInTuning = "built-in"

// Environment variables that replace an unset Options.Tuning or Options.Path.
const (
	envTuning = "SYMMEM_TUNING"
	envPath   = "SYMMEM_PATH"
)

// Tuning describes how a group chooses the path of a call.
type Tuning struct {
	// Table describes the tuning table, such as "built-in table of NVIDIA H200".
	Table string `json:"table"`
	// Digest is a hash of the parts of the table that affect the choice of a path.
	Digest string `json:"digest"`
	// Path is the name of the group's PathChoice, such as "auto".
	Path string `json:"path"`
	// Machines is the number of the group's machines.
	Machines int `json:"machines"`
}

// TuningFile returns the name of the file to which "symmem tune" writes the tuning table for a
// device and a number of ranks. It lies in the user's configuration directory.
func TuningFile(device string, ranks int) (string, error) {
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding the folder of tuning tables: %w", err)
	}

	name := fmt.Sprintf("tuning-%s-%d.json", fileNamePart(device), ranks)
	return filepath.Join(folder, "symmem", name), nil
}

// fileNamePart converts "NVIDIA H200" to "nvidia-h200".
func fileNamePart(device string) string {
	words := strings.FieldsFunc(strings.ToLower(device), func(r rune) bool {
		isLetter := r >= 'a' && r <= 'z'
		isDigit := r >= '0' && r <= '9'
		return !isLetter && !isDigit
	})
	return strings.Join(words, "-")
}

// tuningTableFor reads the named file, or returns the built-in table for BuiltInTuning. An empty
// name selects TuningFile, if that exists, and otherwise the built-in table.
func tuningTableFor(name string, info driver.Info, ranks int) (*tuning.Table, error) {
	if name == "" {
		file, err := TuningFile(info.Name, ranks)
		if err == nil && fileExists(file) {
			name = file
		}
	}

	if name == "" || name == BuiltInTuning {
		return tuning.Builtin(info.Backend, info.Name), nil
	}

	table, err := tuning.ReadFile(name)
	var pathErr *fs.PathError
	switch {
	case errors.As(err, &pathErr): // contains the name
		return nil, fmt.Errorf("reading the tuning table: %w", err)
	case err != nil:
		return nil, fmt.Errorf("reading the tuning table %s (repair it, remove it, or measure again "+
			"with symmem tune): %w", name, err)
	}

	table.Origin = "table " + name
	return table, nil
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func formatDigest(t *tuning.Table) string { return fmt.Sprintf("%016x", t.Digest()) }

// agreeOnSettings compares the settings of all ranks. Every rank gets the same error.
// hasSuspectPools is true if some rank suspects a pool after a fault.
func agreeOnSettings(ctx context.Context, g *Group) (hasSuspectPools bool, err error) {
	rt := g.rt
	own := groupSettings{Machine: machineName(), Suspect: g.aligner.hasSuspectPools()}
	own.Settings = []setting{
		{What: "check level", Value: rt.Check().String()},
		{What: "path choice", Value: rt.opts.Path.String()},
		{What: "formula of reductions", Value: rt.opts.Deterministic.String()},
		{What: "order of messages", Value: rt.opts.messageOrder()},
	}
	table, err := tuningTableFor(rt.opts.Tuning, rt.device.Info(), len(g.ranks))
	if err != nil {
		own.TableError = err.Error()
	} else {
		digest := formatDigest(table)
		own.Settings = append(own.Settings, setting{
			What: "tuning table", Value: digest,
			Text: fmt.Sprintf("%s (digest %s)", table.Name(), digest),
		})
	}

	encoded, err := json.Marshal(own)
	if err != nil {
		return false, fmt.Errorf("encoding the settings of this rank: %w", err)
	}

	encodedSettings, err := g.comm.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return false, err
	}

	byRank := make([]groupSettings, len(encodedSettings))
	for i, text := range encodedSettings {
		if err := json.Unmarshal(text, &byRank[i]); err != nil {
			return false, invalid("cannot decode the settings of rank %d: %.40q", g.ranks[i], text)
		}

		hasSuspectPools = hasSuspectPools || byRank[i].Suspect
	}

	g.router.tuning = table // nil after a TableError, which compareSettings returns
	g.router.shape = groupShape(byRank)
	return hasSuspectPools, compareSettings(byRank, g.ranks)
}

// groupSettings is a rank's message to the other ranks when they create a group.
type groupSettings struct {
	Settings []setting `json:"terms"`   // must be the same on all ranks
	Machine  string    `json:"machine"` // from machineName
	// TableError says why the rank cannot use its tuning table, or is empty.
	TableError string `json:"table_error,omitempty"`
	// Suspect is set if the layout of a pool may differ between ranks.
	Suspect bool `json:"suspect,omitempty"`
}

// setting is a value that ranks compare.
type setting struct {
	What  string `json:"what"`           // the name, such as "path choice"
	Value string `json:"value"`          // such as "auto"
	Text  string `json:"text,omitempty"` // replaces Value in messages, if not empty
}

// machineName returns NCCL_HOSTID, as NCCL does. By default, it returns the host name and the boot
// id, because containers on several machines can share a host name.
func machineName() string {
	if id := os.Getenv("NCCL_HOSTID"); id != "" {
		return id
	}

	// Errors are ignored, because one part usually suffices.
	host, _ := os.Hostname()
	bootID, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return host + " " + strings.TrimSpace(string(bootID))
}

func groupShape(byRank []groupSettings) tuning.Shape {
	machines := map[string]bool{}
	for i := range byRank {
		machines[byRank[i].Machine] = true
	}

	return tuning.Shape{Ranks: len(byRank), Machines: len(machines)}
}

// compareSettings returns an error if a rank cannot use its tuning table, or if settings differ
// between ranks. ranks maps group ranks to world ranks.
func compareSettings(byRank []groupSettings, ranks []int) error {
	for groupRank := range byRank {
		tableError := byRank[groupRank].TableError
		if tableError != "" {
			return invalid("rank %d: %s", ranks[groupRank], tableError)
		}
	}

	for index, s := range byRank[0].Settings { // all ranks send them in the same order
		text := describeDifferences(byRank, ranks, index)
		if text != "" {
			return invalid("ranks differ in their %s: %s", s.What, text)
		}
	}

	return nil
}

// describeDifferences compares one setting. It returns a text such as "rank 0: auto; ranks 1-3:
// plain", or "" if all ranks have the same value.
func describeDifferences(byRank []groupSettings, ranks []int, index int) string {
	var distinct []setting // one for each value
	ranksByValue := map[string][]int{}
	for groupRank := range byRank {
		s := settingAt(byRank[groupRank].Settings, index)
		isNew := ranksByValue[s.Value] == nil
		if isNew {
			distinct = append(distinct, s)
		}

		ranksByValue[s.Value] = append(ranksByValue[s.Value], ranks[groupRank])
	}

	if len(distinct) == 1 {
		return ""
	}

	texts := make([]string, len(distinct))
	for i, s := range distinct {
		sameRanks := slices.Sorted(slices.Values(ranksByValue[s.Value]))
		texts[i] = fmt.Sprintf("%s: %.200s", driver.Ranks(sameRanks), cmp.Or(s.Text, s.Value))
	}

	return strings.Join(texts, "; ")
}

// settingAt returns an empty setting if the rank's version of symmem does not send it.
func settingAt(settings []setting, index int) setting {
	if index >= len(settings) {
		return setting{}
	}

	return settings[index]
}
