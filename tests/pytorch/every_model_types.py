"""The types of models of `test_every_model.py`, by what they read."""

from __future__ import annotations

TOKENS = """
afmoe aimv2 albert align altclip apertus arcee aria audioflamingo3 axk1 axk2 bailing_hybrid bart beam bert
bert_generation bigbird_pegasus biogpt bitnet blenderbot blenderbot_small camembert chinese_clip clap clip
clipseg cohere cohere2 cohere2_moe cosmos3_edge csm ctrl cwm deepseek_v3 deepseek_v32 deepseek_v4 diffllama
distilbert doge electra embedding_gemma2 emu3 ernie ernie4_5 eurobert evolla exaone4 exaone4_5 exaone_moe
falcon_h1 flex_olmo flint florence2 gemma gemma2 gemma3 gemma4 gemma4_unified glm glm4 glm4_moe glm4_moe_lite
glm4v glm5_next glm_image glm_moe_dsa glm_ocr glmasr gpt2 gpt_bigcode gpt_neox gpt_oss
gradium_phonon_tts granite granite4_vision granite_docling granite_swa granitemoe granitemoe_swa
granitemoeshared gte helium higgs_audio_v2 hy_v3 hy_v4 hyperclovax idefics2 idefics3 inkling inkling2
instructblip instructblipvideo internvl jais2 jetmoe jina_embeddings_v3 kimi_k25 kimi_linear kolibri1 kosmos2_5
laguna layoutlm lfm2 lfm3 lfm3_vl llama llama4 longt5 m2m_100 marian markuplm mbart mellum metaclip_2
mimo_v2_flash minicpm3 minicpm_ocr minicpmv4_6 minicpmv4_7 minimax minimax_m2 minimax_m3_vl ministral3 mistral
mistral_large4 mixtral mllama modernbert modernbert_decoder molmo2 moshi moss_transcribe_diarize mt5
muse_glimmer muse_spark nanochat nemotron3_5_transcribe nemotron_h nllb_moe nomic_bert olmo olmo2 olmo3
olmo_hybrid olmoe openai_privacy_filter opt ovis2 owlv2 owlvit pegasus pegasus_x persimmon phi phi3
phi4_multimodal phimoe plbart pocket_tts pop2piano qianfan_ocr qwen2 qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl
qwen3 qwen3_5 qwen3_5_moe qwen3_asr qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe roberta
roberta_prelayernorm roc_bert seamless_m4t seamless_m4t_v2 seed_oss siglip siglip2 smollm3 smolvlm solar_open
splinter stablelm starcoder2 switch_transformers t5 t5gemma t5gemma2 tipsv2 ultrabert umt5 vaultgemma
video_llama_3 videoprism voxtral whisper x_clip xlm_roberta xlm_roberta_xl youtu zaya
""".split()  # noqa: SIM905 - one name a line would be 250 lines
IMAGES = """
aimv2 altclip beit blip_2 chinese_clip clip clipseg deit dinov2 dinov2_with_registers dinov3_vit dpt git ijepa
instructblip instructblipvideo internvl janus metaclip_2 mlcd owlv2 owlvit phi4_multimodal pixio pixtral
qianfan_ocr radio sam3 sam3_lite_text sapiens2 segformer siglip tipsv2 videomae vit vit_msn vivit yolos
""".split()  # noqa: SIM905 - one name a line would be 250 lines
SOUNDS = """
canary cohere_asr glmasr lasr moss_transcribe_diarize parakeet qwen2_audio voxtral
voxtral_realtime whisper
""".split()  # noqa: SIM905 - one name a line would be 250 lines
# Types whose numbers were wrong once: layers that do not say that they are no decoders, or that say they are; that pass
# chosen keys or a sink per query; that widen their masks by 0; and layers of their own, which add a mask to the scores.
MENDED = ("align", "bigbird_pegasus", "bloom", "deepseek_v32", "deepseek_v4", "inkling2", "roformer")
# Encoders, which generate only as decoders that their configuration makes of them.
ENCODERS = ("camembert", "xlm_roberta_xl")
