"""Files of words: trn, stm, ctm, glm."""
