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

// Run starts the ranks and returns when all of them have exited. Failed ranks are not an error of
// Run. A Result without ranks means that no process is running.
//
// When ctx is done, Run kills all ranks and returns the cause of ctx with a complete Result. An
// error while writing the output comes with a complete Result as well. If the reader of an output
// pipe has closed it, the ranks get SIGTERM and Result.Signal is SIGPIPE.
func Run(ctx context.Context, spec Spec) (Result, error) {
	path, err := spec.validate()
	if err != nil {
		return Result{FirstFailed: -1}, fmt.Errorf("launching: %w", err)
	}
	if spec.RunID == "" {
		spec.RunID = rand.Text()
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

const limitAdvice = "raise the limit of open files (ulimit -n)"

func (j *job) reportAcceptError(err error) {
	j.stderr.write(fmt.Appendf(nil, "symmem: the launcher cannot accept the connections of its "+
		"ranks: %v: %s\n", err, limitAdvice))
}

type job struct {
	// Immutable after run.
	spec        *Spec
	ranks       []*rank
	stdout      *sink
	stderr      *sink // the same as stdout if isSameOutput
	sinkErrors  <-chan error
	exits       chan Exit
	store       *rendezvous.Server
	supervisor  *supervisor
	releaseFork chan struct{}
}

func newJob(s *Spec, store *rendezvous.Server) *job {
	sinkErrors := make(chan error, 2) // one error per sink
	delay := cmp.Or(s.lineDelay, unterminatedDelay)
	stdout := &sink{mu: &sync.Mutex{}, delay: delay, errors: sinkErrors, w: s.Stdout}
	stderr := stdout
	if !isSameOutput(s.Stdout, s.Stderr) {
		stderr = &sink{mu: stdout.mu, delay: delay, errors: sinkErrors, w: s.Stderr}
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

func (j *job) addRank(number int, path string, store rendezvous.Endpoint) {
	cmd := &exec.Cmd{
		Path: path,
		Args: j.spec.Command,
		Env:  j.spec.environ(number, store),
	}
	r := &rank{number: number, cmd: cmd}
	r.stdout, r.stderr = &lineWriter{sink: j.stdout}, &lineWriter{sink: j.stderr}
	if !j.spec.OmitPrefix {
		r.stdout.prefix, r.stderr.prefix = prefix(number), prefix(number)
	}
	j.ranks = append(j.ranks, r)
}

func (j *job) run(ctx context.Context) (Result, error) {
	signals := j.spec.Signals
	if signals == nil {
		processSignals := make(chan os.Signal, 8)
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
		switch sinkErr := s.firstError(); {
		case errors.Is(sinkErr, syscall.EPIPE):
			result.Signal = cmp.Or(result.Signal, syscall.SIGPIPE)
		case sinkErr != nil:
			err = errors.Join(err, fmt.Errorf("writing the output of the ranks: %w", sinkErr))
		}
	}
	return result, err
}

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
		if err = r.start(stdin); err != nil {
			j.killRanks(i)
			break
		}
		if err = watcher.add(i, r.cmd.Process.Pid); err != nil {
			j.killRanks(i + 1)
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

func (j *job) killRanks(n int) {
	for _, r := range j.ranks[:n] {
		r.cleanUp(0)
	}
}

// reap sends the exit of each rank to j.exits. Ranks have a goroutine each, so that they do not
// delay each other.
func (j *job) reap(watcher *exitWatcher) {
	defer watcher.close()
	exitIndex := 0
	err := watcher.waitForExits(func(number int) {
		exitIndex++
		go func(exitIndex int) { j.exits <- j.ranks[number].cleanUp(exitIndex) }(exitIndex)
	})
	if err != nil {
		// Only a corrupt descriptor table causes this error.
		for number := range watcher.watched {
			go func() { j.exits <- j.ranks[number].cleanUp(exitIndex + 1) }()
		}
	}
}

func (j *job) supervise(ctx context.Context, signals <-chan os.Signal) error {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var err error
	cancellation := ctx.Done()
	for j.supervisor.phase != phaseDone {
		var o order
		select {
		case e := <-j.exits:
			j.store.RecordExit(e.Rank, e.String())
			o = j.supervisor.handleExit(e)
		case s := <-signals:
			if s, ok := s.(syscall.Signal); ok {
				o = j.supervisor.handleSignal(s)
			}
		case sinkErr := <-j.sinkErrors:
			if errors.Is(sinkErr, syscall.EPIPE) {
				o = j.supervisor.handleSignal(syscall.SIGPIPE)
			}
		case <-timer.C:
			o = j.supervisor.handleTimeout()
		case <-cancellation:
			cancellation, err = nil, context.Cause(ctx)
			o = j.supervisor.kill()
		}
		j.carryOut(o, timer)
	}
	return err
}

func (j *job) carryOut(o order, timer *time.Timer) {
	if o.wait > 0 {
		timer.Reset(o.wait)
	}
	if o.message != "" {
		j.stderr.write([]byte("symmem: " + o.message + " (" + j.runningRanks() + ")\n"))
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

func (j *job) runningRanks() string {
	var descriptions []string
	for i, r := range j.ranks {
		if !j.supervisor.hasExited[i] {
			descriptions = append(descriptions, r.describe())
		}
	}
	return strings.Join(descriptions, ", ")
}
