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

// A tuning table lists the fastest path, one of several algorithms, for each size of a call. Ranks
// with different tables could take different paths in the same AllReduce and wait for each other
// forever. Therefore, they compare their settings when a group is created.

// BuiltInTuning is the value of Options.Tuning for the built-in tuning table.
const BuiltInTuning = "built-in"

// Environment variables for Options.Tuning and Options.Path.
const (
	envTuning = "SYMMEM_TUNING"
	envPath   = "SYMMEM_PATH"
)

// Tuning describes how a group chooses the path of a call.
type Tuning struct {
	// Table describes the tuning table, such as "built-in table of NVIDIA H200".
	Table string `json:"table"`
	// Digest is a hash of the parts of the table that affect the choice.
	Digest string `json:"digest"`
	// Path is the name of the group's PathChoice, such as "auto".
	Path string `json:"path"`
	// Machines is the number of machines that run the group's ranks.
	Machines int `json:"machines"`
}

// TuningFile returns the path of the file in the user's configuration directory to which "symmem
// tune" writes the tuning table for a device and a number of ranks.
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

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func formatDigest(t *tuning.Table) string { return fmt.Sprintf("%016x", t.Digest()) }

// settings is the message of a rank to the others when a group is created.
type settings struct {
	Terms   []setting `json:"terms"`   // the settings that must be the same on all ranks
	Machine string    `json:"machine"` // from machineName
	// TableError says why the rank cannot use its tuning table. It is empty if it can.
	TableError string `json:"table_error,omitempty"`
	// Suspect is set if the layout of a pool may differ between ranks after a fault.
	Suspect bool `json:"suspect,omitempty"`
}

// setting is a value that ranks compare.
type setting struct {
	What  string `json:"what"`           // the name, such as "path choice"
	Value string `json:"value"`          // such as "auto"
	Text  string `json:"text,omitempty"` // replaces Value in messages, if not empty
}

// machineName identifies this machine with NCCL_HOSTID, as NCCL does, or with the host name and the
// boot id, because containers on several machines can share a host name.
func machineName() string {
	if id := os.Getenv("NCCL_HOSTID"); id != "" {
		return id
	}

	// If one part is unknown, the other can still distinguish machines, so errors are ignored.
	host, _ := os.Hostname()
	bootID, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return host + " " + strings.TrimSpace(string(bootID))
}

func groupShape(byRank []settings) tuning.Shape {
	machines := map[string]bool{}
	for i := range byRank {
		machines[byRank[i].Machine] = true
	}

	return tuning.Shape{Ranks: len(byRank), Machines: len(machines)}
}

// compareSettings returns an error if a rank cannot use its tuning table, or if settings differ
// between ranks. ranks maps group ranks to world ranks.
func compareSettings(byRank []settings, ranks []int) error {
	for groupRank := range byRank {
		tableError := byRank[groupRank].TableError
		if tableError != "" {
			return invalid("rank %d: %s", ranks[groupRank], tableError)
		}
	}

	for index, term := range byRank[0].Terms { // all ranks send them in the same order
		text := describeDifferences(byRank, ranks, index)
		if text != "" {
			return invalid("ranks differ in their %s: %s", term.What, text)
		}
	}

	return nil
}

// describeDifferences returns the values of one setting, as in "rank 0: auto; ranks 1-3: plain". It
// returns "" if all ranks have the same value.
func describeDifferences(byRank []settings, ranks []int, index int) string {
	var distinct []setting // one for each value
	ranksByValue := map[string][]int{}
	for groupRank := range byRank {
		term := termAt(byRank[groupRank].Terms, index)
		_, isKnown := ranksByValue[term.Value]
		if !isKnown {
			distinct = append(distinct, term)
		}

		ranksByValue[term.Value] = append(ranksByValue[term.Value], ranks[groupRank])
	}

	if len(distinct) == 1 {
		return ""
	}

	const maxCharacters = 200 // of each value
	texts := make([]string, len(distinct))
	for i, term := range distinct {
		sameRanks := slices.Sorted(slices.Values(ranksByValue[term.Value]))
		text := cmp.Or(term.Text, term.Value)
		texts[i] = fmt.Sprintf("%s: %.*s", driver.Ranks(sameRanks), maxCharacters, text)
	}

	return strings.Join(texts, "; ")
}

// termAt returns an empty setting for a term that another version of symmem does not send.
func termAt(terms []setting, index int) setting {
	if index >= len(terms) {
		return setting{}
	}

	return terms[index]
}
