package tuning

import "slices"

// CanUseWindows reports whether the table chooses the window path for any call of a group on
// symmetric buffers. hasDirect is set if such calls can take the direct path.
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

// thresholds returns the sizes at which the choice for a group can change: the smallest size, and
// the sizes on both sides of the end of each step.
func (t *Table) thresholds(group Shape) []int64 {
	sizes := []int64{1}
	for i := range t.Rules {
		r := &t.Rules[i]
		concernsGroup := r.Shape == group || r.isGeneral()
		if !concernsGroup {
			continue
		}

		for _, s := range r.Steps {
			if s.MaxBytes > 0 {
				sizes = append(sizes, int64(s.MaxBytes), int64(s.MaxBytes)+1)
			}
		}
	}

	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// usesWindow reports whether a call on symmetric buffers takes the window path.
func (t *Table) usesWindow(operation string, bytes int64, group Shape, hasDirect bool) bool {
	if hasDirect {
		const isSymmetric = true
		path, _ := t.ChooseDirect(operation, bytes, isSymmetric, group)
		if path == Direct {
			return false
		}
	}

	path, _ := t.Choose(operation, bytes, group)
	return path == Window
}
