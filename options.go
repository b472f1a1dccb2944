package symmem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/rendezvous"
)

// CheckLevel selects how much ranks compare.
type CheckLevel int

// The check levels.
const (
	// CheckDefault selects CheckEvery if that costs nothing, as on the host backend, or else
	// CheckRegistration.
	CheckDefault CheckLevel = iota
	// CheckOff compares nothing. If ranks differ, results are wrong without an error.
	CheckOff
	// CheckRegistration compares the histories of pools at registrations, in Group.Check, and at
	// intervals in the background. It does not slow down collectives, but may find a divergence
	// late.
	CheckRegistration
	// CheckEvery compares every collective before its result is used, as well.
	CheckEvery
)

var checkNames = []string{"default", "off", "registration", "every"}

// String returns the level's name.
func (l CheckLevel) String() string { return nameOf(l, checkNames, "CheckLevel") }

// ParseCheckLevel parses a name that String returns.
func ParseCheckLevel(name string) (CheckLevel, error) {
	return parseName[CheckLevel](name, checkNames, "check level")
}

func nameOf[T ~int | ~uint8](value T, names []string, ofType string) string {
	if value >= 0 && int(value) < len(names) {
		return names[value]
	}

	return ofType + "(?)"
}

func parseName[T ~int | ~uint8](name string, names []string, kind string) (T, error) {
	i := slices.Index(names, name)
	if i < 0 {
		return 0, invalid("%s %q is none of %s", kind, name, strings.Join(names, ", "))
	}

	return T(i), nil
}

// Options configures Open. The zero value reads all settings from the environment.
type Options struct {
	// Rank is the rank of this process, and Size the number of ranks. If Size is 0, the variables
	// of torchrun, Open MPI, MPICH or Slurm apply, or else the process is the only rank.
	Rank, Size int
	// LocalRank and LocalSize are the same for this machine. If LocalSize is 0, they default to
	// Rank and Size.
	LocalRank, LocalSize int
	// Device selects one of the devices that the process sees.
	Device DeviceChoice
	// Store is the address of the store on rank 0 through which ranks find each other: "host:port",
	// which requires a Token, or "unix:@name". If it is empty, the environment determines it.
	Store string
	// Token authenticates ranks to the store.
	Token string
	// Backend is "auto" or the name of a backend. The default is SYMMEM_BACKEND or "auto".
	Backend string
	// Tuning is the file of the table that determines the paths of collectives, the same on every
	// rank, or BuiltInTuning. The default is SYMMEM_TUNING, TuningFile or the built-in table.
	Tuning string
	// Path chooses the path of collectives. It must be the same on every rank.
	Path PathChoice
	// Deterministic selects the order in which reductions combine values, the same on every rank.
	// Without FormulaAny, groups that cannot use the formula cannot be created, and communicators
	// of other libraries cannot be adopted.
	Deterministic Formula
	// Check selects how much ranks compare. It must be the same on every rank.
	Check CheckLevel
	// CheckInterval is the interval of the comparisons in the background. 0 selects one second, and
	// a negative value disables them.
	CheckInterval time.Duration
	// Timeout limits each wait for another rank, unless the wait has a deadline. 0 selects 30 s.
	Timeout time.Duration
	// WarnAfter is how long this rank waits for other live ranks before it logs a warning, which it
	// repeats every 2*WarnAfter. 0 selects 30 s, and a negative value disables warnings.
	WarnAfter time.Duration
	// Logger receives warnings about late ranks, and panics of user functions that no call returns.
	// nil selects slog.Default(). The handler must not call symmem, which may hold locks.
	Logger *slog.Logger
	// OnLate receives warnings instead of the Logger, each on a new goroutine.
	OnLate func(LateWarning)
	// OnEvent is called for every event on this rank, one at a time for each pool or group; see
	// package event. The Event is valid only until OnEvent returns, and must not be modified.
	OnEvent func(*event.Event)
	// Trace is a folder in which this rank writes a file with its events (see package trace), which
	// is readable even if the process is killed. The default is SYMMEM_TRACE.
	Trace string
	// HTTP makes this rank serve web pages about its state: on a Unix socket if it is "unix", or on
	// one rank of each machine for all its ranks if it is "host:port". Open only logs failures. The
	// default is SYMMEM_HTTP. See docs/reference/live.md.
	HTTP string
	// UnorderedMessages permits messages (Send and Recv) to overtake collectives. It must be the
	// same on every rank. Without it, a Send and its Recv must be called between the same two
	// collectives of their group, which the ranks check at CheckEvery.
	UnorderedMessages bool
	// CallSites records the file and line of every allocation, for error messages, in about a
	// microsecond.
	CallSites bool
	// Scatter, if not 0, is a seed for random segment addresses that differ between ranks, like
	// those of a GPU driver.
	Scatter uint64
	// Interrupted can end waits that no context can end. It is called about a hundred times a
	// second while a collective waits on the caller's goroutine. If it returns an error or panics,
	// the group is aborted and the collective returns an ErrInterrupted that wraps the error. It
	// must return quickly and must not call symmem.
	Interrupted func() error
}

func wrapInterrupted(interrupted func() error) func() error {
	if interrupted == nil {
		return nil
	}

	return func() error {
		err := interrupted()
		if err == nil || errors.Is(err, ErrInterrupted) {
			return err
		}

		return fmt.Errorf("%w: %w", ErrInterrupted, err)
	}
}

// DeviceChoice selects the device of a rank.
type DeviceChoice int

// DeviceAuto selects the device whose number is the local rank.
const DeviceAuto DeviceChoice = 0

// DeviceNumber selects a device by its number, from 0, among those that the process sees.
func DeviceNumber(n int) DeviceChoice {
	if n < 0 {
		return -1 // Open returns an error for it
	}

	return DeviceChoice(n) + 1
}

// String returns "auto" or the number.
func (d DeviceChoice) String() string {
	switch {
	case d == DeviceAuto:
		return "auto"
	case d < 0:
		return "DeviceChoice(?)"
	}

	return strconv.Itoa(int(d) - 1)
}

const envBackend = "SYMMEM_BACKEND"

// envStepGuard disables Group.Step if it is 0.
const envStepGuard = "SYMMEM_STEP_GUARD"

const (
	defaultTimeout  = 30 * time.Second
	defaultInterval = time.Second
)

func (o Options) withDefaults() (Options, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}

	if o.WarnAfter == 0 {
		o.WarnAfter = defaultWarnAfter
	}

	if o.CheckInterval == 0 {
		o.CheckInterval = defaultInterval
	}

	if o.Backend == "" {
		o.Backend = cmp.Or(os.Getenv(envBackend), "auto")
	}

	if o.Tuning == "" {
		o.Tuning = os.Getenv(envTuning)
	}

	if o.Trace == "" {
		o.Trace = os.Getenv(envTrace)
	}

	if o.HTTP == "" {
		o.HTTP = os.Getenv(envHTTP)
	}

	if err := checkHTTP(o.HTTP); err != nil {
		return o, err
	}

	if o.Path < PathDefault || o.Path > PathTwoLevel {
		return o, invalid("path choice %d is unknown", o.Path)
	}

	if o.Deterministic < FormulaDefault || o.Deterministic > FormulaRoundedTree {
		return o, invalid("formula of reductions %d is unknown", o.Deterministic)
	}

	var err error
	if o.Path, err = fromEnvironment(o.Path, envPath, ParsePathChoice, PathAuto); err != nil {
		return o, err
	}

	o.Deterministic, err = fromEnvironment(
		o.Deterministic, envDeterministic, ParseFormula, FormulaAny)
	if err != nil {
		return o, err
	}

	if o.Timeout < 0 {
		return o, invalid("timeout %v is negative", o.Timeout)
	}

	if o.Check < CheckDefault || o.Check > CheckEvery {
		return o, invalid("check level %d is unknown", o.Check)
	}

	if o.Device < 0 {
		return o, invalid("the device number is negative")
	}

	if o.Size < 0 || o.Size > 0 && (o.Rank < 0 || o.Rank >= o.Size) {
		return o, invalid("rank %d does not exist among %d ranks", o.Rank, o.Size)
	}

	return o, nil
}

func fromEnvironment[T ~int](
	option T, variable string, parse func(string) (T, error), fallback T,
) (T, error) {
	if name := os.Getenv(variable); option == 0 && name != "" {
		value, err := parse(name)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", variable, err)
		}

		option = value
	}

	return cmp.Or(option, fallback), nil
}

func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}

	return ctx
}

func (o Options) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}

	return context.WithTimeout(ctx, o.Timeout)
}

func (o Options) rendezvous() rendezvous.Options {
	return rendezvous.Options{
		Rank: o.Rank, Size: o.Size, LocalRank: o.LocalRank, LocalSize: o.LocalSize,
		Address: o.Store, Token: rendezvous.Token(o.Token),
	}
}

func (l CheckLevel) resolve(free bool) CheckLevel {
	switch {
	case l != CheckDefault:
		return l
	case free:
		return CheckEvery
	default:
		return CheckRegistration
	}
}

func chosenBackend(name string) (driver.Backend, error) {
	if name == "auto" {
		return firstAvailableBackend(), nil
	}

	var names []string
	for _, b := range backends {
		if b.Name() == name {
			return b, nil
		}

		names = append(names, b.Name())
	}

	return nil, fmt.Errorf("backend %q is none of auto, %s: %w",
		name, strings.Join(names, ", "), ErrInvalid)
}

func closeTimeout(timeout time.Duration) time.Duration { return 2 * timeout }

func toTimeoutError(err error, timeout time.Duration) error {
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*TimeoutError)) {
		return err
	}

	operation := strings.TrimSuffix(err.Error(), ": "+context.DeadlineExceeded.Error())
	return &TimeoutError{InCall: operation, Waited: closeTimeout(timeout)}
}

func (o Options) messageOrder() string {
	if o.UnorderedMessages {
		return "unordered"
	}

	return "in order with collectives"
}
