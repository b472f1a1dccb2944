package launch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"symmem/internal/rendezvous"
)

// environ returns s.Env with the rank's variables, which replace those of an outer launcher.
func (s *Spec) environ(rank int, store rendezvous.Endpoint) []string {
	own := s.variables(rank, store)
	env := slices.DeleteFunc(slices.Clone(s.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, isOwn := own[name]
		return isOwn || name == "TORCHELASTIC_ERROR_FILE"
	})
	// Without OMP_NUM_THREADS, OpenMP would start a thread per core in each rank.
	isThreadCount := func(entry string) bool { return strings.HasPrefix(entry, "OMP_NUM_THREADS=") }
	if s.Ranks > 1 && !slices.ContainsFunc(env, isThreadCount) {
		env = append(env, "OMP_NUM_THREADS=1")
	}
	for name, value := range own {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// With TORCHELASTIC_USE_AGENT_STORE=False, rank 0 of a PyTorch program opens a store on
// MASTER_PORT.
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

func prefix(rank int) string { return fmt.Sprintf("[%d] ", rank) }
