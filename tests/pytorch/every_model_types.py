"""The types of models of `test_every_model.py`, by what they read."""

from __future__ import annotations

TOKENS = """
afmoe aimv2 albert align altclip apertus arcee aria audioflamingo3 axk1 axk2 aya_vision bailing_hybrid bamba
bark bart beam bert bert_generation bigbird_pegasus biogpt bitnet blenderbot blenderbot_small bridgetower camembert
chameleon chinese_clip clap clip clipseg cohere cohere2 cohere2_moe cohere2_vision colmodernvbert colpali
cosmos3_edge cosmos3_omni csm ctrl cwm dbrx decision_transformer deepseek_v2 deepseek_v3 deepseek_v32
deepseek_v4 deepseek_vl dia diffllama distilbert doge dots1 dpr electra embedding_gemma2 emu3 encoder_decoder
ernie ernie4_5 ernie4_5_moe ernie4_5_vl_moe esm esmc eurobert evolla exaone4 exaone4_5 exaone_moe falcon_h1
flex_olmo flint florence2 fuyu gemma gemma2 gemma3 gemma3n gemma4 gemma4_unified glm glm4 glm4_moe glm4_moe_lite
glm4v glm4v_moe glm5_next glm_image glm_moe_dsa glm_ocr glmasr got_ocr2 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj
gradium_phonon_tts granite granite4_vision granite_docling granite_speech granite_speech_plus granite_swa
granitemoe granitemoe_swa granitemoehybrid granitemoeshared gte helium higgs_audio_v2 hrm_text hunyuan_v1_dense
hunyuan_v1_moe hunyuan_vl hy_v3 hy_v4 hyperclovax hyperclovax_vision_v2 idefics idefics2 idefics3 inkling
inkling2 instructblip instructblipvideo internvl jais2 jamba jetmoe jina_embeddings_v3 kimi_k25 kimi_linear
kolibri1 kosmos2_5 laguna layoutlm lfm2 lfm2_moe lfm2_vl lfm3 lfm3_vl lighton_ocr llama llama4 llava llava_next
llava_next_video llava_onevision longcat_flash longt5 m2m_100 marian markuplm mbart mellum metaclip_2
mimo_v2_flash minicpm3 minicpm_ocr minicpmv4_6 minicpmv4_7 minimax minimax_m2 minimax_m3_vl ministral ministral3
mistral mistral3 mistral4 mistral_large4 mixtral mllama mobilebert modernbert modernbert_decoder modernvbert
molmo2 moshi moss_transcribe_diarize mt5 muse_glimmer muse_spark musicflamingo musicgen musicgen_melody nanochat
nemotron nemotron3_5_transcribe nemotron_h nemotron_h_omni nllb_moe nomic_bert olmo olmo2 olmo3 olmo_hybrid
olmoe openai_privacy_filter opt ovis2 owlv2 owlvit paddleocr_vl paligemma pegasus pegasus_x persimmon phi phi3
phi4_multimodal phimoe plbart pocket_tts pop2piano qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio
qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe
recurrent_gemma roberta roberta_prelayernorm roc_bert seamless_m4t seamless_m4t_v2 seed_oss siglip siglip2
smollm3 smolvlm solar_open splinter stablelm starcoder2 step3p7 switch_transformers t5 t5gemma t5gemma2 tipsv2
udop ultrabert ultravbert umt5 vaultgemma video_llama_3 video_llava videoprism vipllava voxtral whisper x_clip
xlm_roberta xlm_roberta_xl xmod youtu zamba zaya
""".split()  # noqa: SIM905 - one name a line would be 250 lines
IMAGES = """
aimv2 altclip beit blip_2 chinese_clip clip clipseg deit dinov2 dinov2_with_registers dinov3_vit dpt git ijepa
instructblip instructblipvideo internvl janus kosmos2 metaclip_2 mlcd owlv2 owlvit phi4_multimodal pixio pixtral
pp_formulanet qianfan_ocr radio sam sam3 sam3_lite_text sam_hq sapiens2 segformer siglip swin tipsv2 videomae
vision_encoder_decoder vit vit_mae vit_msn vitpose vivit yolos
""".split()  # noqa: SIM905 - one name a line would be 250 lines
SOUNDS = """
audio_spectrogram_transformer canary cohere_asr glmasr hubert lasr moss_transcribe_diarize parakeet qwen2_audio
sew speech_to_text unispeech unispeech_sat voxtral voxtral_realtime wav2vec2 wav2vec2_bert wav2vec2_conformer
whisper
""".split()  # noqa: SIM905 - one name a line would be 250 lines
# By the name of their main input.
OTHERS = {
    "pix2struct": "flattened_patches",
    "informer": "past_values",
    "patchtst": "past_values",
    "time_series_transformer": "past_values",
    "timesfm": "past_values",
    "timesfm2_5": "past_values",
    "vjepa2": "pixel_values_videos",
}
# Types that were wrong once: layers whose class is chosen by the name; that do not say that they are no decoders, or
# that say they are, or say by their configuration what their masks do not; that pass chosen keys or a sink per query;
# that widen their masks by 0; and layers of their own, which add a mask to the scores.
MENDED = (
    "align", "bark", "bigbird_pegasus", "bloom", "bridgetower", "deepseek_v32", "deepseek_v4", "inkling2", "paligemma",
    "roformer",
)  # fmt: skip
# Encoders, which generate only as decoders that their configuration makes of them.
ENCODERS = ("camembert", "xlm_roberta_xl")
