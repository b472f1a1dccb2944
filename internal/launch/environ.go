package launch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"symmem/internal/rendezvous"
)

// environ returns s.Env with the rank's variables. They replace those that an outer launcher has
// set, such as torchrun.
func (s *Spec) environ(rank int, store rendezvous.Endpoint) []string {
	rankVariables := s.variables(rank, store)
	isRemoved := func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, isReplaced := rankVariables[name]
		return isReplaced || name == "TORCHELASTIC_ERROR_FILE" // a file of an outer torchrun
	}
	env := slices.DeleteFunc(slices.Clone(s.Env), isRemoved)
	// Without OMP_NUM_THREADS, OpenMP would start a thread per core in each rank.
	isThreadCount := func(entry string) bool { return strings.HasPrefix(entry, "OMP_NUM_THREADS=") }
	if s.Ranks > 1 && !slices.ContainsFunc(env, isThreadCount) {
		env = append(env, "OMP_NUM_THREADS=1")
	}

	for name, value := range rankVariables {
		env = append(env, name+"="+value)
	}

	slices.Sort(env)
	return env
}

// variables returns the variables of torchrun, and those of the store that the launcher serves.
//
// TORCHELASTIC_USE_AGENT_STORE=False means that the launcher serves no store of PyTorch. Rank 0 of
// a PyTorch program therefore opens one on MASTER_PORT.
func (s *Spec) variables(rank int, store rendezvous.Endpoint) map[string]string {
	size := strconv.Itoa(s.Ranks)
	return map[string]string{
		"RANK":                         strconv.Itoa(rank),
		"LOCAL_RANK":                   strconv.Itoa(rank),
		"ROLE_RANK":                    strconv.Itoa(rank),
		"WORLD_SIZE":                   size,
		"LOCAL_WORLD_SIZE":             size,
		"ROLE_WORLD_SIZE":              size,
		"ROLE_NAME":                    "default",
		"GROUP_RANK":                   "0",
		"GROUP_WORLD_SIZE":             "1",
		"MASTER_ADDR":                  "127.0.0.1",
		"MASTER_PORT":                  strconv.Itoa(s.MasterPort),
		"TORCHELASTIC_RUN_ID":          s.RunID,
		"TORCHELASTIC_RESTART_COUNT":   "0",
		"TORCHELASTIC_MAX_RESTARTS":    "0",
		"TORCHELASTIC_USE_AGENT_STORE": "False",
		rendezvous.EnvStore:            store.Address,
		rendezvous.EnvToken:            string(store.Token),
	}
}

// prefix returns the prefix of the output lines of a rank.
func prefix(rank int) string { return fmt.Sprintf("[%d] ", rank) }
