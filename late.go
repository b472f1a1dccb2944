package symmem

import (
	"log/slog"
	"time"

	"symmem/driver"
)

// LateWarning reports live ranks that keep this rank waiting. See [driver.LateWarning].
type LateWarning = driver.LateWarning

const defaultWarnAfter = 30 * time.Second

// lateSettings gives OnLate a goroutine, because it may block.
func (o Options) lateSettings() driver.Late {
	warn := o.logLate
	if o.OnLate != nil {
		warn = func(w LateWarning) {
			go driver.GuardHere("Options.OnLate", func() { o.OnLate(w) }, o.logFault)
		}
	}

	return driver.Late{After: max(0, o.WarnAfter), Warn: warn}
}

// logFault logs a panic or runtime.Goexit of a user function, if err is not nil.
func (o Options) logFault(err error) {
	if err != nil {
		o.logger().Error("symmem: " + err.Error())
	}
}

func (o Options) logger() *slog.Logger {
	if o.Logger != nil {
		return o.Logger
	}

	return slog.Default()
}

func (o Options) logLate(w LateWarning) {
	o.logger().Warn("symmem: "+w.String(), "group", w.Group, "doing", w.InCall, "waited", w.Waited,
		"ranks", w.Ranks, "activity", w.Activity)
}

// absenceWarner returns a function that warns about ranks that are missing at Open or have not left
// yet. The function returns the time until its next call.
func (o Options) absenceWarner(
	operation string,
) func(missing []int, waited time.Duration) time.Duration {
	late := o.lateSettings()
	return func(missing []int, waited time.Duration) time.Duration {
		if len(missing) > 0 {
			late.Warn(LateWarning{
				InCall: operation, Waited: waited.Round(time.Millisecond), Ranks: missing,
			})
		}

		if waited == 0 {
			return late.Next(0, -1)
		}

		return late.Next(waited, 0)
	}
}
