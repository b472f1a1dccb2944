package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Table writes the report for people. Columns in which nothing would stand are left out.
func (r *Report) Table(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := r.columns()
	for _, c := range columns {
		fmt.Fprintf(out, "%s\t", c.title)
	}
	fmt.Fprintln(out)
	for i := range r.Results {
		for _, c := range columns {
			fmt.Fprintf(out, "%s\t", c.cell(&r.Results[i]))
		}
		fmt.Fprintln(out)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

// column is one column of a table; an empty cell says that a result has nothing to show there.
type column struct {
	title string
	cell  func(*Result) string
}

func (r *Report) columns() []column {
	all := []column{
		{"what", (*Result).label},
		{"median", func(r *Result) string { return duration(r.Median) }},
		{"min", func(r *Result) string { return duration(r.Min) }},
		{"p10", func(r *Result) string { return duration(r.P10) }},
		{"p90", func(r *Result) string { return duration(r.P90) }},
		{"allocs", func(r *Result) string { return number(r.AllocsPerOp) }},
	}
	for _, name := range r.counted() {
		all = append(all, column{name, func(r *Result) string {
			if v, ok := r.Counts[name]; ok {
				return number(v)
			}
			return ""
		}})
	}
	for _, c := range []column{
		{"bar", (*Result).barText},
		{"baseline", func(r *Result) string { return or(r.Baseline, strings.Clone) }},
		{"its median", func(r *Result) string { return or(r.BaselineMedian, duration) }},
		{"ratio", func(r *Result) string { return or(r.Ratio, ratio) }},
	} {
		if slices.ContainsFunc(r.Results, func(x Result) bool { return c.cell(&x) != "" }) {
			all = append(all, c)
		}
	}
	return all
}

// counted lists the names of all counts.
func (r *Report) counted() []string {
	names := map[string]bool{}
	for i := range r.Results {
		for name := range r.Results[i].Counts {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// label is the name with the parameters.
func (r *Result) label() string {
	var b strings.Builder
	b.WriteString(r.Name)
	for _, key := range slices.Sorted(maps.Keys(r.Params)) {
		fmt.Fprintf(&b, " %s=%v", key, r.Params[key])
	}
	return b.String()
}

func (r *Result) barText() string {
	switch {
	case r.Bar == 0:
		return ""
	case r.Missed():
		return duration(r.Bar) + " missed"
	default:
		return duration(r.Bar) + " met"
	}
}

func or[T any](v *T, text func(T) string) string {
	if v == nil {
		return ""
	}
	return text(*v)
}

func ratio(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + "x" }

// number writes a count without needless digits.
func number(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// duration writes nanoseconds with three digits and a unit.
func duration(ns float64) string {
	for _, unit := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}} {
		if ns >= unit.ns {
			return digits(ns/unit.ns) + " " + unit.name
		}
	}
	return digits(ns) + " ns"
}

func digits(v float64) string {
	switch {
	case v >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}
