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

// BuiltInTuning as Options.Tuning keeps to the tables that symmem comes with.
const BuiltInTuning = "built-in"

// The environment of path choice; options go before it.
const (
	envTuning = "SYMMEM_TUNING"
	envPath   = "SYMMEM_PATH"
)

// Tuning describes how the paths of a group are chosen.
type Tuning struct {
	// Table names the table, with the file if it is of one.
	Table string `json:"table"`
	// Digest stands for everything in it that decides.
	Digest string `json:"digest"`
	// Path is "auto", or what the group is set to.
	Path string `json:"path"`
	// Machines is the number of machines that the group's ranks run on.
	Machines int `json:"machines"`
}

// TuningFile returns the file to which symmem tune writes the table of a device and a number of
// ranks, and from which Open reads it: below $XDG_CONFIG_HOME, or .config in the home directory.
// Without either it returns an error, and Open uses no file. Open does the same if it may not read
// the directory.
func TuningFile(device string, ranks int) (string, error) {
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding the folder of tuning tables: %w", err)
	}
	return filepath.Join(folder, "symmem", fmt.Sprintf("tuning-%s-%d.json", slug(device), ranks)), nil
}

// slug turns the name of a device into a part of a file's name.
func slug(device string) string {
	parts := strings.FieldsFunc(strings.ToLower(device), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return strings.Join(parts, "-")
}

// exists reports whether there is a file. Where this cannot be known, as in a home directory of
// somebody else, there is none.
func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// settings are what ranks must have in common to communicate, and where they run. Ranks exchange
// them when they connect: one that compares at another level would wait for an agreement that
// another rank skips, and ranks that choose paths by different tables would wait for each other in
// different collectives.
type settings struct {
	Terms []term `json:"terms"`
	// Machine names the machine that the rank runs on.
	Machine string `json:"machine"`
	// TableError is why this rank has no table.
	TableError string `json:"table_error,omitempty"`
	// Suspect reports whether this rank holds a pool of the group suspect; it is no setting, and may
	// differ.
	Suspect bool `json:"suspect,omitempty"`
}

// term is one of the settings that ranks must have in common.
type term struct {
	What  string `json:"what"`
	Value string `json:"value"`
	// Text describes the value for people, if Value does not.
	Text string `json:"text,omitempty"`
}

// machineName identifies the machine as NCCL does: by NCCL_HOSTID, or by the host's name and its
// boot id, since containers of one machine may have different names, and containers of two the
// same.
func machineName() string {
	if id := os.Getenv("NCCL_HOSTID"); id != "" {
		return id
	}
	// Where one of the two cannot be read, the other one alone is the name.
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return host + " " + strings.TrimSpace(string(boot))
}

func digestText(t *tuning.Table) string { return fmt.Sprintf("%016x", t.Digest()) }

// shapeOf counts ranks and machines.
func shapeOf(all []settings) tuning.Shape {
	machines := map[string]bool{}
	for i := range all {
		machines[all[i].Machine] = true
	}
	return tuning.Shape{Ranks: len(all), Machines: len(machines)}
}

// compareSettings returns an error that names the ranks that differ, and in what.
func compareSettings(all []settings, ranks []int) error {
	for i := range all {
		if all[i].TableError != "" {
			return invalid("rank %d: %s", ranks[i], all[i].TableError)
		}
	}
	for i, own := range all[0].Terms {
		if text := differences(all, ranks, i); text != "" {
			return invalid("ranks differ in their %s: %s", own.What, text)
		}
	}
	return nil
}

// differences lists which ranks have which value of a term, or nothing if all have the same. A rank
// that has no such term has none.
func differences(all []settings, ranks []int, i int) string {
	var different []term
	holders := map[string][]int{} // by value
	for r := range all {
		var own term
		if i < len(all[r].Terms) {
			own = all[r].Terms[i]
		}
		if holders[own.Value] == nil {
			different = append(different, own)
		}
		holders[own.Value] = append(holders[own.Value], ranks[r])
	}
	if len(different) == 1 {
		return ""
	}
	sides := make([]string, len(different))
	for k, own := range different {
		same := slices.Sorted(slices.Values(holders[own.Value]))
		sides[k] = fmt.Sprintf("%s: %.200s", driver.Ranks(same), cmp.Or(own.Text, own.Value))
	}
	return strings.Join(sides, "; ")
}
