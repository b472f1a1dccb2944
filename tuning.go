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

// BuiltInTuning is the value of Options.Tuning that selects the built-in table.
const BuiltInTuning = "built-in"

// Environment variables for Options.Tuning and Options.Path.
const (
	envTuning = "SYMMEM_TUNING"
	envPath   = "SYMMEM_PATH"
)

// Tuning describes how the paths of a group are chosen.
type Tuning struct {
	// Table is the name of the table. It includes the file name if the table was read from a file.
	Table string `json:"table"`
	// Digest is a digest of those parts of the table that affect the choice of paths.
	Digest string `json:"digest"`
	// Path is the group's path choice, such as "auto".
	Path string `json:"path"`
	// Machines is the number of machines that the group's ranks run on.
	Machines int `json:"machines"`
}

// TuningFile returns the file to which symmem tune writes the table for a device and a number of
// ranks, and from which Open reads it. The file is below $XDG_CONFIG_HOME, or below .config in the
// home directory. If neither is known, TuningFile returns an error.
func TuningFile(device string, ranks int) (string, error) {
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding the folder of tuning tables: %w", err)
	}
	return filepath.Join(folder, "symmem", fmt.Sprintf("tuning-%s-%d.json", fileNamePart(device), ranks)), nil
}

func fileNamePart(device string) string {
	parts := strings.FieldsFunc(strings.ToLower(device), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return strings.Join(parts, "-")
}

// exists reports whether a file exists in a readable directory.
func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// settings holds what the ranks of a group exchange when they connect. Terms must be the same on
// all ranks, because ranks could otherwise wait for each other in different collectives.
type settings struct {
	Terms      []setting `json:"terms"`
	Machine    string    `json:"machine"`
	TableError string    `json:"table_error,omitempty"`
	// Suspect reports whether this rank has marked a pool of the group suspect after a fault.
	Suspect bool `json:"suspect,omitempty"`
}

type setting struct {
	What  string `json:"what"`
	Value string `json:"value"`
	// Text, if set, replaces Value in messages.
	Text string `json:"text,omitempty"`
}

// machineName identifies the machine as NCCL does: by NCCL_HOSTID, or by the host name and the boot
// id, because containers on different machines may have the same host name.
func machineName() string {
	if id := os.Getenv("NCCL_HOSTID"); id != "" {
		return id
	}
	// If one of the two cannot be read, the other must be enough.
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return host + " " + strings.TrimSpace(string(boot))
}

func digestText(t *tuning.Table) string { return fmt.Sprintf("%016x", t.Digest()) }

func shapeOf(all []settings) tuning.Shape {
	machines := map[string]bool{}
	for i := range all {
		machines[all[i].Machine] = true
	}
	return tuning.Shape{Ranks: len(all), Machines: len(machines)}
}

func compareSettings(all []settings, ranks []int) error {
	for i := range all {
		if all[i].TableError != "" {
			return invalid("rank %d: %s", ranks[i], all[i].TableError)
		}
	}
	for i, term := range all[0].Terms {
		if text := describeDifferences(all, ranks, i); text != "" {
			return invalid("ranks differ in their %s: %s", term.What, text)
		}
	}
	return nil
}

// describeDifferences lists the values of term i and their ranks, or returns "" if all values are
// the same.
func describeDifferences(all []settings, ranks []int, i int) string {
	var distinctTerms []setting
	ranksByValue := map[string][]int{} // by value
	for r := range all {
		var term setting
		if i < len(all[r].Terms) {
			term = all[r].Terms[i]
		}
		if ranksByValue[term.Value] == nil {
			distinctTerms = append(distinctTerms, term)
		}
		ranksByValue[term.Value] = append(ranksByValue[term.Value], ranks[r])
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
