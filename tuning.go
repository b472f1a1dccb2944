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

// Tuning describes how a group chooses the path of a call: the way in which it runs.
type Tuning struct {
	// Table is the name of the tuning table, and its file if it has one.
	Table string `json:"table"`
	// Digest is a hash of the parts of the table that affect the choice.
	Digest string `json:"digest"`
	// Path is the group's setting, such as "auto".
	Path     string `json:"path"`
	Machines int    `json:"machines"`
}

// TuningFile returns the path of the file with the tuning table for a device and a number of ranks.
// The command symmem tune writes it to the user's configuration directory.
func TuningFile(device string, ranks int) (string, error) {
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding the folder of tuning tables: %w", err)
	}
	name := fmt.Sprintf("tuning-%s-%d.json", fileNamePart(device), ranks)
	return filepath.Join(folder, "symmem", name), nil
}

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

// settings are exchanged when a group is created. If Terms differed between ranks, they could wait
// for each other in different collectives.
type settings struct {
	Terms      []setting `json:"terms"`
	Machine    string    `json:"machine"`
	TableError string    `json:"table_error,omitempty"`
	// Suspect means that a pool's layout may differ between ranks after a failure.
	Suspect bool `json:"suspect,omitempty"`
}

type setting struct {
	What  string `json:"what"`
	Value string `json:"value"`
	Text  string `json:"text,omitempty"` // replaces Value in messages if it is not empty
}

// machineName returns the same name as NCCL. The host name does not suffice, because containers on
// several machines can share it.
func machineName() string {
	if id := os.Getenv("NCCL_HOSTID"); id != "" {
		return id
	}
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return host + " " + strings.TrimSpace(string(boot))
}

func formatDigest(t *tuning.Table) string { return fmt.Sprintf("%016x", t.Digest()) }

func groupShape(byRank []settings) tuning.Shape {
	machines := map[string]bool{}
	for i := range byRank {
		machines[byRank[i].Machine] = true
	}
	return tuning.Shape{Ranks: len(byRank), Machines: len(machines)}
}

func compareSettings(byRank []settings, ranks []int) error {
	for i := range byRank {
		if byRank[i].TableError != "" {
			return invalid("rank %d: %s", ranks[i], byRank[i].TableError)
		}
	}
	for i, term := range byRank[0].Terms {
		if text := describeDifferences(byRank, ranks, i); text != "" {
			return invalid("ranks differ in their %s: %s", term.What, text)
		}
	}
	return nil
}

// describeDifferences returns "" if all values of the term are the same.
func describeDifferences(byRank []settings, ranks []int, termIndex int) string {
	var distinctTerms []setting
	ranksByValue := map[string][]int{}
	for i := range byRank {
		var term setting
		if termIndex < len(byRank[i].Terms) {
			term = byRank[i].Terms[termIndex]
		}
		if ranksByValue[term.Value] == nil {
			distinctTerms = append(distinctTerms, term)
		}
		ranksByValue[term.Value] = append(ranksByValue[term.Value], ranks[i])
	}
	if len(distinctTerms) == 1 {
		return ""
	}
	texts := make([]string, len(distinctTerms))
	for i, term := range distinctTerms {
		same := slices.Sorted(slices.Values(ranksByValue[term.Value]))
		texts[i] = fmt.Sprintf("%s: %.200s", driver.Ranks(same), cmp.Or(term.Text, term.Value))
	}
	return strings.Join(texts, "; ")
}
