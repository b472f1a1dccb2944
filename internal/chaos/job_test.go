package chaos

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"symmem"
	"symmem/internal/launch"
	"symmem/internal/rendezvous"
)

// Environment variables of a rank.
const (
	roleVariable = "SYMMEM_CHAOS_ROLE"
	taskVariable = "SYMMEM_CHAOS_TASK" // JSON
	jobVariable  = "SYMMEM_CHAOS_JOB"  // job.id

	machinesVariable = "SYMMEM_CHAOS_MACHINES"
	hostVariable     = "NCCL_HOSTID" // names a rank's machine for NCCL and symmem
)

// roles holds the main functions of ranks. Each writes failures of symmem to standard output, and
// returns an error only if it could not perform the task.
var roles = map[string]func(task []byte) error{
	"page":     pageRankMain,
	"programs": programsRankMain,
	"remap":    remapRankMain,
	"signals":  signalsRankMain,
}

// runRole runs this process as a rank and returns its exit code.
func runRole(role string) int {
	err := restartOnMachine()
	if err == nil {
		err = roles[role]([]byte(os.Getenv(taskVariable)))
	}

	if err != nil {
		fmt.Fprintf(os.Stderr, "rank %s: %v\n", os.Getenv("RANK"), err)
		return 1
	}

	return 0
}

// restartOnMachine restarts this process with the name of the rank's machine in its environment.
// Setting the variable is not enough, because NCCL sees only variables that were set when the
// process started.
func restartOnMachine() error {
	machines, _ := strconv.Atoi(os.Getenv(machinesVariable))
	if machines <= 1 || os.Getenv(hostVariable) != "" {
		return nil
	}

	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}

	ranks, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return err
	}

	program, err := os.Executable()
	if err != nil {
		return err
	}

	host := fmt.Sprintf("%s=machine-%d", hostVariable, rank*machines/ranks)
	return syscall.Exec(program, os.Args, append(os.Environ(), host))
}

// job is a set of processes, the ranks, that a test starts from its own executable.
type job struct {
	role      string // key of roles
	ranks     int
	task      any               // argument of the role's function
	timeLimit time.Duration     // after which run returns errHang
	machines  int               // number of simulated machines, or 0 for the real one
	variables []string          // additional environment variables, as NAME=value
	onLine    func(line string) // receives standard output; calls are serialized
	id        string            // random; run sets it
	folder    string            // folder for temporary files, or "" for the default
}

var errHang = errors.New("program hangs")

func (j *job) environment() ([]string, error) {
	task, err := json.Marshal(j.task)
	if err != nil {
		return nil, err
	}

	env := os.Environ()
	if os.Getenv("GORACE") == "" {
		// Reduce the time for which the race detector delays an exit, 1 s by default.
		env = append(env, "GORACE=atexit_sleep_ms=10")
	}

	env = append(env, j.variables...)
	env = append(env, fmt.Sprintf("%s=%d", machinesVariable, j.machines))
	if j.folder != "" {
		env = append(env, "TMPDIR="+j.folder)
	}

	return append(env,
		"GOTRACEBACK=all", // a hanging rank prints the stacks of all goroutines
		roleVariable+"="+j.role,
		taskVariable+"="+string(task),
		jobVariable+"="+j.id,
	), nil
}

// run waits until all ranks have exited. It returns an error if the job hangs or a rank fails, but
// tolerates ranks that die of SIGKILL.
func (j *job) run(ctx context.Context) (launch.Result, error) {
	j.id = rand.Text()
	env, err := j.environment()
	if err != nil {
		return launch.Result{}, err
	}

	signals := make(chan os.Signal, 1) // launch.Run forwards signals to all ranks
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watcher sync.WaitGroup
	var isHung bool
	watcher.Go(func() { isHung = j.limitTime(ended, signals, cancel) })
	stderr := &bytes.Buffer{}
	grace := j.timeLimit // do not terminate the other ranks after a failure
	result, err := launch.Run(ctx, launch.Spec{
		Ranks: j.ranks, Command: []string{os.Args[0]}, Env: env, OmitPrefix: true,
		Stdout: lineWriter(j.onLine), Stderr: stderr, Signals: signals, Grace: grace,
	})
	close(ended)
	watcher.Wait()
	switch {
	case isHung:
		return result, fmt.Errorf("%w: still running after %v\n%s", errHang, j.timeLimit, stderr)
	case err != nil:
		return result, err
	}

	for _, exit := range result.Exits {
		if exit.Code != 0 && exit.Signal != syscall.SIGKILL {
			return result, fmt.Errorf("%v\n%s", exit, stderr)
		}
	}

	return result, nil
}

// ignoreLauncher makes this rank run without the launcher's store. Rank 0 serves another store, and
// the ranks themselves have to detect that a process has exited.
func ignoreLauncher(o symmem.Options) (_ symmem.Options, err error) {
	if o.Rank, err = strconv.Atoi(os.Getenv("RANK")); err != nil {
		return o, err
	}

	if o.Size, err = strconv.Atoi(os.Getenv("WORLD_SIZE")); err != nil {
		return o, err
	}

	o.Store = "unix:@" + storeSocket(os.Getenv(jobVariable)) // @ denotes an abstract socket
	for _, name := range []string{rendezvous.EnvStore, rendezvous.EnvToken} {
		if err := os.Unsetenv(name); err != nil {
			return o, err
		}
	}

	return o, nil
}

func storeSocket(jobID string) string { return "symmem-chaos-" + jobID }

// limitTime makes the ranks print their stacks and exit unless ended is closed within timeLimit.
func (j *job) limitTime(ended chan struct{}, signals chan<- os.Signal, kill func()) (isHung bool) {
	select {
	case <-ended:
		return false
	case <-time.After(j.timeLimit):
	}

	const dumpTime = 5 * time.Second
	signals <- syscall.SIGQUIT
	select {
	case <-ended:
	case <-time.After(dumpTime):
		kill()
	}

	return true
}

// awaitStopped waits until SIGSTOP has stopped a process.
func awaitStopped(pid int) error {
	const stopTime = 30 * time.Second
	for deadline := time.Now().Add(stopTime); time.Now().Before(deadline); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}

		// The format is "pid (command) state ...", where state T means stopped.
		_, state, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(state, "T") {
			return nil
		}

		<-time.After(time.Millisecond)
	}

	return fmt.Errorf("process %d has not stopped within %v", pid, stopTime)
}

// lineWriter is called with each line written, without the newline. Each Write must contain whole
// lines.
type lineWriter func(line string)

func (fn lineWriter) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		fn(strings.TrimSuffix(line, "\n"))
	}

	return len(text), nil
}
