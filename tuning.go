package symmem

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"symmem/driver"
	"symmem/internal/tuning"
)

// BuiltInTuning as Options.Tuning selects the built-in table.
const BuiltInTuning = "built-in"

// Environment variables for Options.Tuning and Options.Path.
const (
	envTuning = "SYMMEM_TUNING"
	envPath   = "SYMMEM_PATH"
)

// A path is a way in which a call runs. A tuning table says which path is the fastest up to which
// size of a call. If rank 0 and rank 1 had different tables, they could take different paths in the
// same AllReduce, and wait for each other. Therefore, when a group is created, the ranks exchange
// and compare their settings.

// Tuning describes how a group chooses the path of a call.
type Tuning struct {
	// Table is the name of the tuning table, and its file if it has one.
	Table string `json:"table"`
	// Digest is a hash of the parts of the table that affect the choice.
	Digest string `json:"digest"`
	// Path is the name of the group's PathChoice, such as "auto".
	Path string `json:"path"`
	// Machines is the number of machines on which the group's ranks run.
	Machines int `json:"machines"`
}

// TuningFile returns the name of the file with the tuning table for a device and a number of
// ranks. The file is in the user's configuration directory. The command symmem tune writes it.
func TuningFile(device string, ranks int) (string, error) {
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding the folder of tuning tables: %w", err)
	}

	name := fmt.Sprintf("tuning-%s-%d.json", fileNamePart(device), ranks)
	return filepath.Join(folder, "symmem", name), nil
}

// fileNamePart converts the name of a device, such as "NVIDIA H200", to a part of a file's name,
// such as "nvidia-h200".
func fileNamePart(device string) string {
	words := strings.FieldsFunc(strings.ToLower(device), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return strings.Join(words, "-")
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// formatDigest formats a table's digest for Tuning.Digest.
func formatDigest(t *tuning.Table) string { return fmt.Sprintf("%016x", t.Digest()) }

// settings contains what a rank sends to the others when a group is created.
type settings struct {
	Terms   []setting `json:"terms"`   // must be the same on all ranks
	Machine string    `json:"machine"` // from machineName
	// TableError says why the rank's tuning table cannot be used, unless it is empty.
	TableError string `json:"table_error,omitempty"`
	// Suspect is true if the layout of one of the rank's pools may differ between ranks after a
	// fault.
	Suspect bool `json:"suspect,omitempty"`
}

// setting is a term and its value on a rank. For example, What is "path choice" and Value is
// "auto".
type setting struct {
	What  string `json:"what"`
	Value string `json:"value"`          // ranks compare it
	Text  string `json:"text,omitempty"` // replaces Value in messages, unless it is empty
}

// machineName returns the name by which NCCL identifies this machine. It contains the boot id,
// because containers on several machines can share a host name.
func machineName() string {
	if id := os.Getenv("NCCL_HOSTID"); id != "" {
		return id
	}

	// Either part suffices to distinguish machines, so errors do not matter.
	host, _ := os.Hostname()
	bootID, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return host + " " + strings.TrimSpace(string(bootID))
}

// groupShape counts the ranks of a group and their machines.
func groupShape(byRank []settings) tuning.Shape {
	machines := map[string]bool{}
	for i := range byRank {
		machines[byRank[i].Machine] = true
	}

	return tuning.Shape{Ranks: len(byRank), Machines: len(machines)}
}

// compareSettings returns an error if a rank has no tuning table or the terms differ between
// ranks. ranks maps group ranks to world ranks.
func compareSettings(byRank []settings, ranks []int) error {
	for groupRank := range byRank {
		tableError := byRank[groupRank].TableError
		if tableError != "" {
			return invalid("rank %d: %s", ranks[groupRank], tableError)
		}
	}

	for termIndex, term := range byRank[0].Terms { // in the same order on all ranks
		text := describeDifferences(byRank, ranks, termIndex)
		if text != "" {
			return invalid("ranks differ in their %s: %s", term.What, text)
		}
	}

	return nil
}

// describeDifferences describes the values of the term with an index in settings.Terms, such as
// "rank 0: auto; ranks 1-3: plain". If all values are the same, it returns "".
func describeDifferences(byRank []settings, ranks []int, termIndex int) string {
	var distinct []setting // the first setting with each value
	ranksByValue := map[string][]int{}
	for groupRank := range byRank {
		term := termAt(byRank[groupRank].Terms, termIndex)
		isNew := ranksByValue[term.Value] == nil
		if isNew {
			distinct = append(distinct, term)
		}

		ranksByValue[term.Value] = append(ranksByValue[term.Value], ranks[groupRank])
	}

	if len(distinct) == 1 {
		return ""
	}

	const maxCharacters = 200 // of a value; longer texts are cut
	texts := make([]string, len(distinct))
	for i, term := range distinct {
		sameRanks := slices.Sorted(slices.Values(ranksByValue[term.Value]))
		text := cmp.Or(term.Text, term.Value)
		texts[i] = fmt.Sprintf("%s: %.*s", driver.Ranks(sameRanks), maxCharacters, text)
	}

	return strings.Join(texts, "; ")
}

// termAt returns the term with an index. A rank with another version of symmem can have fewer
// terms. In that case, termAt returns an empty setting.
func termAt(terms []setting, index int) setting {
	if index >= len(terms) {
		return setting{}
	}

	return terms[index]
}
