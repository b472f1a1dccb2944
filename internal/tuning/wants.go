package tuning

// TakesWindows tells whether some call of a group on symmetric buffers takes the window path.
// direct tells whether calls of the group can go direct.
func (t *Table) TakesWindows(group Shape, direct bool) bool {
	sizes := []int64{1}
	for i := range t.Rules {
		for _, s := range t.Rules[i].Steps {
			// A choice changes behind the end of a step alone.
			if s.UpTo > 0 {
				sizes = append(sizes, int64(s.UpTo), int64(s.UpTo)+1)
			}
		}
	}
	for _, operation := range operations {
		for _, bytes := range sizes {
			if t.takesWindow(operation, false, group, direct, bytes) ||
				t.takesWindow(operation, true, group, direct, bytes) {
				return true
			}
		}
	}
	return false
}

func (t *Table) takesWindow(
	operation string, inPlace bool, group Shape, direct bool, bytes int64,
) bool {
	if direct {
		if goes, _ := t.ChooseDirect(operation, inPlace, true, group, bytes); goes {
			return false
		}
	}
	path, _ := t.Choose(operation, inPlace, group, bytes)
	return path == Window
}
