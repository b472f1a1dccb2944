package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"symmem"
	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/launch"
	"symmem/internal/mps"
)

// sharing is how ranks use fewer GPUs than there are ranks.
type sharing struct {
	ranks, gpus int
	found       doctor.Sharing
	// given is the environment as the user has set it: LocalRanks adds to it.
	given []string
}

// roomFor is how many ranks to start where so many are asked for, or are the default, and how they
// share GPUs, nil if each has its own. Ranks that nobody asked for share the only GPU of a machine
// at most.
func roomFor(ranks int, asked bool, backend string) (int, *sharing, error) {
	given := os.Environ()
	room, err := symmem.LocalRanks(backend)
	switch {
	case err != nil:
		return 0, nil, err
	case room == 0 || ranks <= room:
		return ranks, nil, nil
	case !asked && room > 1:
		return room, nil, nil
	}
	library := doctor.LookAtLibrary()
	s, err := lookAtSharing(ranks, &library, given)
	switch {
	case err == nil:
		return ranks, s, nil
	case asked:
		return 0, nil, fmt.Errorf("%w; take --ranks %d, or --backend host", err, room)
	}
	return room, nil, nil
}

// lookAtSharing says how ranks can share the GPUs of this machine, or why they cannot.
func lookAtSharing(ranks int, library *doctor.Library, given []string) (*sharing, error) {
	from, gpus := doctor.LookAtDriver()
	if from.Error != "" {
		return nil, fmt.Errorf("%d ranks that share GPUs: %s", ranks, from.Error)
	}
	s := &sharing{ranks, len(gpus), doctor.LookAtSharing(gpus, library, os.Getenv), given}
	if s.found.Missing != "" {
		return nil, fmt.Errorf("%d ranks: this machine has %s, and ranks cannot share one: %s", ranks,
			s.machine(), s.found.Missing)
	}
	return s, nil
}

func (s *sharing) machine() string {
	if s.gpus == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", s.gpus)
}

// runRanks starts ranks as launch.Run does. Where they share GPUs it says so, in one line, and runs
// a daemon of the Multi-Process Service for them if there is none.
func runRanks(ctx context.Context, spec launch.Spec, s *sharing) (launch.Result, error) {
	if s == nil {
		return launch.Run(ctx, spec)
	}
	// From here on a signal may not end this process, which has to end the daemon; nor SIGPIPE, whose
	// write fails.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Stop(pipes)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	spec.Signals = signals
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	daemon, how := s.serve(ctx)
	fmt.Fprintf(spec.Stderr, "symmem: %d ranks share %s, %s: results count, times mean nothing\n",
		s.ranks, s.machine(), how)
	spec.Env = s.environ(spec.Env, daemon)
	result, err := launch.Run(ctx, spec)
	if daemon != nil {
		s.end(daemon, spec.Stderr)
	}
	return result, err
}

// serve starts a daemon, if none runs and the environment does not say where one would be.
func (s *sharing) serve(ctx context.Context) (daemon *mps.Daemon, how string) {
	_, said := os.LookupEnv(mps.PipeVariable)
	switch {
	case s.found.Service:
		return nil, "side by side"
	case said:
		return nil, "in turns (" + mps.PipeVariable + " names no daemon)"
	case s.found.Program == "":
		return nil, "in turns (there is no nvidia-cuda-mps-control)"
	}
	daemon, err := mps.Start(ctx, s.given)
	if err != nil {
		return nil, "in turns (" + err.Error() + ")"
	}
	s.found.Service = true
	return daemon, "side by side"
}

// end ends the daemon. What ranks have found stands all the same if that fails.
func (s *sharing) end(daemon *mps.Daemon, stderr io.Writer) {
	if err := daemon.Close(); err != nil {
		fmt.Fprintf(stderr, "symmem: %v\n", err)
	}
}

// queues are the most that a process has to a GPU, and served those that a GPU has for all clients
// of the service together, less what these use by themselves.
const (
	queues = 32
	served = 64
)

// environ is an environment with what ranks need that share GPUs, but for what the user has set.
// Communicators with all their channels would fill the memory, streams that share a queue of the
// GPU wait for each other, and what clients launch has to fit together with what the others do.
func (s *sharing) environ(env []string, daemon *mps.Daemon) []string {
	each := (s.ranks + s.gpus - 1) / s.gpus
	ours := map[string]string{
		doctor.SharingVariable: "1", "NCCL_MAX_NCHANNELS": "4", "NCCL_MAX_CTAS": "4",
	}
	if s.found.Service {
		ours["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = strconv.Itoa(max(1, 100/each))
		ours["CUDA_DEVICE_MAX_CONNECTIONS"] = strconv.Itoa(min(queues, max(1, served/each)))
	}
	for _, entry := range s.given {
		if name, value, _ := strings.Cut(entry, "="); value != "" {
			delete(ours, name)
		}
	}
	if daemon != nil {
		maps.Copy(ours, daemon.Variables(s.gpus))
	}
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := ours[name]
		return replaced
	})
	for name, value := range ours {
		env = append(env, name+"="+value)
	}
	return env
}
