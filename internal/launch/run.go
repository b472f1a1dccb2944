package launch

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"symmem/internal/rendezvous"
)

// Run starts the processes of a job, which are called ranks. It returns when all of them have
// exited. Ranks that fail are not an error of Run. If Run could not start the ranks, it kills those
// that it has started, and returns an error and a Result without Exits.
//
// When ctx is done, Run kills all ranks and returns the cause of ctx. If Run cannot write the
// output, it returns an error after the ranks have exited. In both cases, the Result is complete.
// If the reader of an output pipe has closed it, the ranks get SIGTERM and Result.Signal is
// SIGPIPE.
func Run(ctx context.Context, spec Spec) (Result, error) {
	path, err := spec.complete()
	if err != nil {
		return Result{FirstFailed: -1}, fmt.Errorf("launching: %w", err)
	}

	token := rendezvous.NewToken()
	store, err := rendezvous.Listen(rendezvous.LaunchStore+rand.Text(), token)
	if err != nil {
		return Result{FirstFailed: -1}, fmt.Errorf("launching: %w", err)
	}
	defer store.Close()
	j := newJob(&spec, store)
	store.OnAcceptError(j.reportAcceptError)
	endpoint := rendezvous.Endpoint{Address: store.Address(), Token: token}
	for number := range spec.Ranks {
		j.addRank(number, path, endpoint)
	}

	return j.run(ctx)
}

// limitAdvice is part of error messages about too many open files.
const limitAdvice = "raise the limit of open files (ulimit -n)"

// reportAcceptError prints an error of the store's server.
func (j *job) reportAcceptError(err error) {
	message := fmt.Appendf(nil, "symmem: the launcher cannot accept the connections of its "+
		"ranks: %v: %s\n", err, limitAdvice)
	j.stderr.writeMessage(message)
}

// job holds the state of a call of Run.
type job struct {
	// These fields do not change while the ranks are running.
	spec        *Spec
	ranks       []*rank            // by number
	stdout      *sink              // destination of the ranks' standard output
	stderr      *sink              // the same as stdout if both write to the same file
	sinkErrors  <-chan error       // receives the first error of each sink
	exits       chan Exit          // receives the exit of each rank
	store       *rendezvous.Server // by which the ranks find each other
	supervisor  *supervisor        // decides which signals the ranks get
	releaseFork chan struct{}      // closed to end the thread that has started the ranks
}

// newJob returns a job without ranks.
func newJob(s *Spec, store *rendezvous.Server) *job {
	sinkErrors := make(chan error, 2) // A sink sends at most one error, so it never waits.
	stdout := &sink{mu: &sync.Mutex{}, delay: s.lineDelay, errors: sinkErrors, destination: s.Stdout}
	stderr := stdout
	if !isSameOutput(s.Stdout, s.Stderr) {
		stderr = &sink{mu: stdout.mu, delay: s.lineDelay, errors: sinkErrors, destination: s.Stderr}
	}

	return &job{
		store:       store,
		spec:        s,
		stdout:      stdout,
		stderr:      stderr,
		sinkErrors:  sinkErrors,
		exits:       make(chan Exit, s.Ranks),
		supervisor:  newSupervisor(s),
		releaseFork: make(chan struct{}),
	}
}

// addRank adds a rank, which runs the program at path. It does not start the rank.
func (j *job) addRank(number int, path string, store rendezvous.Endpoint) {
	cmd := &exec.Cmd{
		Path: path,
		Args: j.spec.Command,
		Env:  j.spec.environ(number, store),
	}
	linePrefix := ""
	if !j.spec.OmitPrefix {
		linePrefix = fmt.Sprintf("[%d] ", number)
	}

	j.ranks = append(j.ranks, &rank{
		number: number,
		cmd:    cmd,
		stdout: &lineWriter{sink: j.stdout, prefix: linePrefix},
		stderr: &lineWriter{sink: j.stderr, prefix: linePrefix},
	})
}

// run starts the ranks and waits until all have exited.
func (j *job) run(ctx context.Context) (Result, error) {
	signals := j.spec.Signals
	if signals == nil {
		processSignals := make(chan os.Signal, 8) // signal.Notify drops signals if it is full.
		signal.Notify(processSignals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
		defer signal.Stop(processSignals)
		signals = processSignals
	}

	// Without a handler, SIGPIPE would kill the launcher but not the ranks' children.
	pipeSignals := make(chan os.Signal, 1)
	signal.Notify(pipeSignals, syscall.SIGPIPE)
	defer signal.Stop(pipeSignals)
	defer close(j.releaseFork)
	if err := j.start(); err != nil {
		if errors.Is(err, syscall.EMFILE) {
			err = fmt.Errorf("%w: %s", err, limitAdvice)
		}

		return Result{FirstFailed: -1}, fmt.Errorf("launching: %w", err)
	}

	err := j.supervise(ctx, signals)
	result := j.supervisor.result()
	for _, s := range j.sinks() {
		sinkErr := s.firstError()
		switch {
		case errors.Is(sinkErr, syscall.EPIPE):
			result.Signal = cmp.Or(result.Signal, syscall.SIGPIPE)
		case sinkErr != nil:
			writeErr := fmt.Errorf("writing the output of the ranks: %w", sinkErr)
			err = errors.Join(err, writeErr)
		}
	}

	return result, err
}

// sinks returns the one or two different sinks.
func (j *job) sinks() []*sink {
	if j.stdout == j.stderr {
		return []*sink{j.stdout}
	}

	return []*sink{j.stdout, j.stderr}
}

// start starts all ranks or none. The thread that forks the ranks waits until run returns, because
// the kernel kills the ranks when that thread exits.
func (j *job) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- j.fork()
		<-j.releaseFork
	}()
	return <-started
}

// fork starts all ranks. After an error, none is running.
func (j *job) fork() error {
	watcher, err := newExitWatcher()
	if err != nil {
		return err
	}

	for i, r := range j.ranks {
		var stdin io.Reader
		if i == 0 {
			stdin = j.spec.Stdin
		}

		err = r.start(stdin)
		if err != nil {
			j.killRanks(j.ranks[:i])
			break
		}

		err = watcher.add(i, r.cmd.Process.Pid)
		if err != nil {
			j.killRanks(j.ranks[:i+1])
			break
		}
	}

	if err != nil {
		watcher.close()
		return err
	}

	go j.reap(watcher)
	return nil
}

// killRanks kills ranks after another rank could not be started.
func (j *job) killRanks(started []*rank) {
	const unusedIndex = 0 // There is no Result.
	for _, r := range started {
		r.cleanUp(unusedIndex)
	}
}

// reap sends the exit of each rank to j.exits. It cleans up each rank on a separate goroutine, so
// that one does not delay the others.
func (j *job) reap(watcher *exitWatcher) {
	defer watcher.close()
	cleanUp := func(number, exitIndex int) { j.exits <- j.ranks[number].cleanUp(exitIndex) }
	exitIndex := 0
	err := watcher.waitForExits(func(number int) {
		exitIndex++
		go cleanUp(number, exitIndex)
	})
	if err != nil {
		// Only a corrupt descriptor table causes this error. Kill the ranks that are still running.
		for number := range watcher.pidfds {
			go cleanUp(number, exitIndex+1)
		}
	}
}

// supervise waits until all ranks have exited, and carries out the orders of the supervisor
// meanwhile. It returns the cause of ctx if ctx is done first.
func (j *job) supervise(ctx context.Context, signals <-chan os.Signal) error {
	timer := time.NewTimer(time.Hour)
	timer.Stop() // until an order starts it
	defer timer.Stop()
	var err error
	cancellation := ctx.Done()
	for j.supervisor.phase != phaseDone {
		var o order
		select {
		case e := <-j.exits:
			j.store.RecordExit(e.Rank, e.String())
			o = j.supervisor.handleExit(e)
		case received := <-signals:
			number, isNumber := received.(syscall.Signal)
			if isNumber {
				o = j.supervisor.handleSignal(number)
			}
		case sinkErr := <-j.sinkErrors:
			if errors.Is(sinkErr, syscall.EPIPE) {
				o = j.supervisor.handleSignal(syscall.SIGPIPE)
			}
		case <-timer.C:
			o = j.supervisor.handleTimeout()
		case <-cancellation:
			cancellation = nil // Select this case only once.
			err = context.Cause(ctx)
			o = j.supervisor.kill()
		}

		j.carryOut(o, timer)
	}

	return err
}

// carryOut starts the timer, prints the message and sends the signal of an order.
func (j *job) carryOut(o order, timer *time.Timer) {
	if o.wait > 0 {
		timer.Reset(o.wait)
	}

	if o.message != "" {
		line := "symmem: " + o.message + " (" + j.runningRanks() + ")\n"
		j.stderr.writeMessage([]byte(line))
	}

	if o.signal == 0 {
		return
	}

	for _, r := range j.ranks {
		r.signal(o.signal)
		if o.signal != syscall.SIGKILL {
			// A stopped process handles other signals only after SIGCONT.
			r.signal(syscall.SIGCONT)
		}
	}
}

// runningRanks describes the ranks that have not exited.
func (j *job) runningRanks() string {
	var descriptions []string
	for i, r := range j.ranks {
		if !j.supervisor.hasExited[i] {
			descriptions = append(descriptions, r.describe())
		}
	}

	return strings.Join(descriptions, ", ")
}
