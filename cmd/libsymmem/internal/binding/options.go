package binding

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"symmem"
)

// Callers of symmem_open pass the options of a world as a JSON object. For example, this is rank 2
// of 4, whose main pool has at most 1 GiB:
//
//	{"rank": 2, "size": 4, "timeout_ms": 30000, "pool": {"capacity": 1073741824}}
//
// An option that is absent has its default value.

// Options holds the options of a world, which symmem.h documents. A zero value means that the
// option is absent.
type Options struct {
	Rank            int               `json:"rank"`
	Size            int               `json:"size"`
	LocalRank       int               `json:"local_rank"`
	LocalSize       int               `json:"local_size"`
	Device          *int              `json:"device"`
	Store           string            `json:"store"`
	Token           string            `json:"token"`
	Backend         string            `json:"backend"`
	Tuning          string            `json:"tuning"`
	Trace           string            `json:"trace"`
	Path            string            `json:"path"`
	Deterministic   string            `json:"deterministic"`
	Check           string            `json:"check"`
	CheckIntervalMS int64             `json:"check_interval_ms"`
	TimeoutMS       int64             `json:"timeout_ms"`
	WarnAfterMS     int64             `json:"warn_after_ms"`
	CallSites       *bool             `json:"callsites"`
	OrderedMessages bool              `json:"ordered_messages"`
	Scatter         uint64            `json:"scatter"`
	GoMaxProcs      int               `json:"gomaxprocs"`
	Pool            PoolOptions       `json:"pool"`
	Environment     map[string]string `json:"environment"`
}

// PoolOptions holds the options of one pool.
type PoolOptions struct {
	Capacity     int64  `json:"capacity"`
	FirstSegment int64  `json:"first_segment"`
	Placement    string `json:"placement"`
}

// decode decodes a JSON object to options, a pointer. An unknown field causes an error. An empty
// text leaves *options unchanged.
func decode(text []byte, options any) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}

	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(options); err != nil {
		return fmt.Errorf("reading the options: %w: %w", err, symmem.ErrInvalid)
	}

	if _, err := d.Token(); err != io.EOF { // Decode has read only the first value
		return fmt.Errorf("reading the options: text after the JSON object: %w", symmem.ErrInvalid)
	}

	return nil
}

// runtimeOptions checks the options, and converts them to those of symmem.Open.
func (o *Options) runtimeOptions() (symmem.Options, error) {
	out := symmem.Options{
		Rank: o.Rank, Size: o.Size, LocalRank: o.LocalRank, LocalSize: o.LocalSize,
		Store: o.Store, Token: o.Token, Backend: o.Backend, Tuning: o.Tuning, Trace: o.Trace,
		Scatter: o.Scatter, UnorderedMessages: !o.OrderedMessages,
	}
	var err error
	if out.Timeout, err = timeoutOf(o.TimeoutMS); err != nil {
		return out, err
	}

	if out.CheckInterval, err = intervalOf("check_interval_ms", o.CheckIntervalMS); err != nil {
		return out, err
	}

	if out.WarnAfter, err = intervalOf("warn_after_ms", o.WarnAfterMS); err != nil {
		return out, err
	}

	if o.Device != nil {
		if *o.Device < 0 {
			return out, fmt.Errorf("device is %d; want at least 0: %w", *o.Device, symmem.ErrInvalid)
		}

		out.Device = symmem.DeviceNumber(*o.Device)
	}

	if o.Path != "" {
		if out.Path, err = symmem.ParsePathChoice(o.Path); err != nil {
			return out, err
		}
	}

	if o.Deterministic != "" {
		if out.Deterministic, err = symmem.ParseFormula(o.Deterministic); err != nil {
			return out, err
		}
	}

	if o.Check != "" {
		out.Check, err = symmem.ParseCheckLevel(o.Check)
	}

	return out, err
}

// maxMilliseconds is one day. It is a limit, because a larger value is probably in a wrong unit,
// such as nanoseconds.
const maxMilliseconds = 24 * 60 * 60 * 1000

// timeoutOf converts a timeout in milliseconds.
func timeoutOf(timeoutMS int64) (time.Duration, error) {
	if timeoutMS < 0 || timeoutMS > maxMilliseconds {
		return 0, fmt.Errorf("timeout_ms is %d; want 0 to %d: %w", timeoutMS, maxMilliseconds,
			symmem.ErrInvalid)
	}

	return time.Duration(timeoutMS) * time.Millisecond, nil
}

// intervalOf converts an option for how often or how early something happens, in milliseconds. A
// negative value means never. name is the name of the option.
func intervalOf(name string, milliseconds int64) (time.Duration, error) {
	if milliseconds < -maxMilliseconds || milliseconds > maxMilliseconds {
		return 0, fmt.Errorf("%s is %d; want at most %d, or a negative value of at least %d: %w", name,
			milliseconds, maxMilliseconds, -maxMilliseconds, symmem.ErrInvalid)
	}

	return time.Duration(milliseconds) * time.Millisecond, nil
}

// withDomain converts the options to those of a symmem.Pool whose domain is the given group: the
// ranks of this group share the pool.
func (o PoolOptions) withDomain(domain *symmem.Group) (symmem.PoolOptions, error) {
	out := symmem.PoolOptions{
		Domain: domain, Capacity: o.Capacity, FirstSegment: o.FirstSegment,
	}
	if o.Placement == "" {
		return out, nil
	}

	var err error
	out.Placement, err = symmem.ParsePlacement(o.Placement)
	return out, err
}

// shouldRecordCallSites reports whether calls record their source lines. It is the option callsites
// or, if that is absent, the environment variable SYMMEM_CALLSITES: a boolean, or the maximum
// number of source lines for a call.
func (o *Options) shouldRecordCallSites() bool {
	if o.CallSites != nil {
		return *o.CallSites
	}

	text := os.Getenv("SYMMEM_CALLSITES")
	if lines, err := strconv.Atoi(text); err == nil {
		return lines > 0
	}

	isEnabled, err := strconv.ParseBool(text)
	return err == nil && isEnabled
}

// defaultMaxProcs is the limit if the option and the variable are absent. It is small, because many
// ranks may share a machine, and the caller's threads need processors too.
const defaultMaxProcs = 2

// setMaxProcs limits the processors that Go code of this process uses (GOMAXPROCS). The limit is
// the option gomaxprocs or, if that is absent, the environment variable SYMMEM_GOMAXPROCS.
func (o *Options) setMaxProcs() {
	procs := o.GoMaxProcs
	if procs <= 0 {
		procs, _ = strconv.Atoi(os.Getenv("SYMMEM_GOMAXPROCS")) // 0 if it is not a number
	}

	if procs <= 0 {
		procs = min(defaultMaxProcs, runtime.NumCPU())
	}

	runtime.GOMAXPROCS(procs)
}

// setEnvironment sets the variables in the option environment, so that os.Getenv finds them. Go has
// copied the environment of the process when the library was loaded, so it lacks later variables.
func (o *Options) setEnvironment() error {
	for name, value := range o.Environment {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting environment variable %q: %w: %w", name, err, symmem.ErrInvalid)
		}
	}

	return nil
}
