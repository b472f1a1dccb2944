package tuning

import "slices"

// CanUseWindows reports whether the table chooses the window path for any call on symmetric
// buffers.
func (t *Table) CanUseWindows(group Shape, hasDirect bool) bool {
	sizes := t.thresholds(group)
	for _, operation := range operations {
		for _, bytes := range sizes {
			if t.usesWindow(operation, bytes, group, hasDirect) {
				return true
			}
		}
	}
	return false
}

// thresholds returns the sizes on both sides of the end of each step.
func (t *Table) thresholds(group Shape) []int64 {
	sizes := []int64{1}
	for i := range t.Rules {
		if r := &t.Rules[i]; r.Shape != group && !r.isGeneral() {
			continue
		}
		for _, s := range t.Rules[i].Steps {
			if s.MaxBytes > 0 {
				sizes = append(sizes, int64(s.MaxBytes), int64(s.MaxBytes)+1)
			}
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

func (t *Table) usesWindow(operation string, bytes int64, group Shape, hasDirect bool) bool {
	if hasDirect {
		if path, _ := t.ChooseDirect(operation, bytes, true, group); path == Direct {
			return false
		}
	}
	path, _ := t.Choose(operation, bytes, group)
	return path == Window
}
